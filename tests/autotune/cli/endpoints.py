"""A folder with a trace and an ``autotune.yaml`` that names a server on loopback."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.autotune.engine.endpoint_cases import FaultCase
from tests.autotune.engine.faulty_server import FaultyServer

REPLAY = ("replay", "--endpoint", "local", "--trace", "t.jsonl", "--warmup-s", "0")
REQUESTS = 4
OUTPUT_TOKENS = 5


def make_folder(folder: Path, **endpoints: Mapping[str, Any]) -> None:
    """Write ``t.jsonl``, with prompts that begin alike, and the endpoints."""
    rows = [
        {
            "timestamp": 10 * row,
            "input_length": 36,
            "output_length": OUTPUT_TOKENS,
            "hash_ids": [1, 2, 10 + row],
        }
        for row in range(REQUESTS)
    ]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "autotune.yaml").write_text(yaml.safe_dump({"endpoints": endpoints}), "utf-8")


def local(server: FaultyServer, **changes: Any) -> dict[str, Any]:
    """Return the settings of an endpoint; None leaves one out."""
    given = {"base_url": server.base_url, "model": "m", **changes}
    return {name: value for name, value in given.items() if value is not None}


def neutral(text: str) -> str:
    """Return what was said, without what differs from run to run."""
    text = re.sub(r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT", text)
    return text.replace(str(Path.cwd()), "/home/me")


def fault_row(case: FaultCase, err: str) -> str:
    """Return the row of a case in the table, given what was said on stderr."""
    said = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
    if case.code == 0:
        said = [line for line in err.splitlines() if line.startswith("failed: ")]
        said.append(f"{REQUESTS - case.failed} of {REQUESTS} requests count")
    cells = (case.what, str(case.code), "<br>".join(map(_code, said)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
