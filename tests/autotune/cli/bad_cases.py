"""What a bad input is, and what lies in its folder before the command is run."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Setup = Callable[[Path, Path], object]
"""Makes files in a folder; the second path is a database with the studies knee, slow and new."""

MODEL = ("--model", "demo:tiny-llama")
TUNE = ("tune", *MODEL, "--trace", "demo:mixed")
NESTED = ("&l0 [1]", *(f"&l{n} [*l{n - 1}]" for n in range(1, 3000)))
SMALL = ("--engine-arg", "load_format=dummy", "--engine-arg", "enforce_eager=true")


@dataclass(frozen=True, slots=True)
class Case:
    """One input, and what the command must answer.

    Attributes:
        what: is wrong with it, as the first column of the table says it.
        command: after ``autotune``, run in a folder of its own.
        code: exit code; 0 for an input that is odd and can be used.
        error: part of the line of that name; of any line on stderr if the code is 0.
        hint: part of the line of that name.
        setup: makes the files.
        environ: environment variables.
        vllm: whether vLLM is asked, which takes seconds; no engine starts in any case.
    """

    what: str
    command: tuple[str, ...]
    code: int
    error: str
    hint: str = ""
    setup: Setup = lambda _folder, _studies: None
    environ: Mapping[str, str] = field(default_factory=dict)
    vllm: bool = False


def request(**changes: Any) -> str:
    """Return a line of a trace; a field of None is left out."""
    row = {"timestamp": 0, "input_length": 10, "output_length": 5, **changes}
    return json.dumps({name: value for name, value in row.items() if value is not None})


def trace_of(*lines: str | bytes) -> Setup:
    """Write the lines as t.jsonl."""
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    return lambda folder, _: (folder / "t.jsonl").write_bytes(b"".join(r + b"\n" for r in raw))


def file_of(name: str, content: str | bytes) -> Setup:
    raw = content if isinstance(content, bytes) else content.encode()

    def write(folder: Path, _studies: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)

    return write


def pipe_of(name: str) -> Setup:
    """Make a pipe that nobody writes or reads."""
    return lambda folder, _: os.mkfifo(folder / name)


def with_studies(*statements: str, cut_at: int | None = None) -> Setup:
    """Copy the studies to autotune.db, change them by SQL, or cut the file off."""

    def copy(folder: Path, studies: Path) -> None:
        path = folder / "autotune.db"
        shutil.copy(studies, path)
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        path.write_bytes(path.read_bytes()[:cut_at])

    return copy


def database_of(*statements: str) -> Setup:
    """Make another program's autotune.db."""

    def make(folder: Path, _studies: Path) -> None:
        with closing(sqlite3.connect(folder / "autotune.db")) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    return make


def model_of(config: Mapping[str, Any] | None) -> Setup:
    """Make the folder ``model``, with or without a config.json."""
    if config is None:
        return lambda folder, _: (folder / "model").mkdir()
    return file_of("model/config.json", json.dumps(config))
