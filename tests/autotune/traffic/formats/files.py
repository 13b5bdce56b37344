"""Small files of other people's forms, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.traffic.formats.base import ReadOptions

Row = Mapping[str, Any]

AT_FIVE_PER_S = ReadOptions(rate_per_s=5.0)


def json_lines(folder: Path, *rows: Row, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def json_document(folder: Path, value: object, *, name: str = "log.json", indent: int = 2) -> Path:
    path = folder / name
    path.write_text(json.dumps(value, indent=indent))
    return path


def text_file(folder: Path, *lines: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def word_tokenizer(folder: Path) -> Path:
    """Write a tokenizer that has a token for each word."""
    words = {"[UNK]": 0, "a": 1, "b": 2, "c": 3}
    path = folder / "tokenizer.json"
    path.write_text(
        json.dumps(
            {
                "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
                "post_processor": None, "decoder": None,
                "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
            }
        )
    )  # fmt: skip
    return path
