"""How many tokens a text has: counted by a tokenizer, or estimated from its characters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from autotune.errors import UsageError

CHARACTERS_PER_TOKEN = 4.0
"""Of English text, roughly. Code and other languages have fewer."""

_HINT = "name a folder with a tokenizer.json, that file itself, or a model of the Hugging Face hub"


class TextLengths:
    """Counts texts, and says how.

    Attributes:
        estimated: there is no tokenizer.
    """

    def __init__(self, tokenizer: str | None) -> None:
        self._name = tokenizer
        self.estimated = tokenizer is None
        self._encode = None if tokenizer is None else _encoder(tokenizer)

    def tokens(self, text: str) -> int:
        """Return how many tokens ``text`` has; only an empty one has none."""
        if self._encode is not None:
            return len(self._encode(text))
        return max(round(len(text) / CHARACTERS_PER_TOKEN), 1) if text else 0

    def source(self) -> str:
        """Return in a few words where lengths come from."""
        if self._name is not None:
            return f"lengths counted with {self._name}"
        return f"lengths estimated at {CHARACTERS_PER_TOKEN:g} characters a token"

    def remark(self) -> str:
        """Return in a sentence where lengths come from."""
        if self._name is not None:
            return f"Texts were counted with the tokenizer {self._name}, without a chat template."
        return (
            f"Lengths of texts are estimates, {CHARACTERS_PER_TOKEN:g} characters a token: "
            "--tokenizer counts them."
        )


def _encoder(name: str) -> Callable[[str], list[int]]:
    path = Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        return _encoder_of(file)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UsageError(f"--tokenizer {name}: cannot be loaded", hint=_HINT) from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    return encode


def _encoder_of(file: Path) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    try:
        text = file.read_text(encoding="utf-8")
        json.loads(text)
        tokenizer = Tokenizer.from_str(text)
    # The library raises the base class itself for a file that is no tokenizer.
    except Exception as error:
        raise UsageError(f"--tokenizer {file}: is no tokenizer", hint=_HINT) from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode
