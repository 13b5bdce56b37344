"""A recording that is not finished: lines in the order in which requests ended.

``NAME.part`` begins with a header, and every further line is a record or a gap. A crash leaves it
as it is, perhaps with its last line cut off; whoever starts next makes a trace of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from autotune.errors import TraceError
from autotune.traffic.capture.record import Moment, Record, TornLine

SUFFIX = ".part"
VERSION = 1


class Appending(Protocol):
    """A file that is appended to, without a buffer."""

    def write(self, data: bytes, /) -> int | None:
        """Append, as ``io.RawIOBase.write`` does."""

    def truncate(self, size: int, /) -> int:
        """Cut the file to ``size`` bytes."""

    def close(self) -> None:
        """Close the file."""


_LOST = "the line that says how it was recorded cannot be read"

Opener = Callable[[Path], Appending]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a recording says of itself.

    Attributes:
        by: what records.
        block_size: tokens of a block.
        with_text: texts are kept.
        version: of this form.
    """

    by: str
    block_size: Annotated[int, Field(ge=1)]
    with_text: bool = False
    version: int = VERSION


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Requests that were not recorded, with times in seconds since 1970."""

    start_s: Moment
    end_s: Moment
    requests: Annotated[int, Field(ge=0)]
    reason: str

    def to_line(self) -> bytes:
        """Return the gap as a line of JSON, with its line break."""
        return json.dumps({"gap": asdict(self)}).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A recording that was read.

    Attributes:
        header: what it says of itself.
        records: in the order in which requests ended.
        gaps: likewise.
        torn: lines that were cut off.
    """

    header: Header
    records: list[Record]
    gaps: list[Missed]
    torn: int


def open_part(path: Path) -> Appending:
    """Make a recording that its owner alone may read.

    Raises:
        OSError: it cannot be made, or is there.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "wb", buffering=0)  # noqa: PTH123


class PartFile:
    """A recording that is being written, by whole lines or not at all.

    Raises:
        OSError: it cannot be made, or its header not be written.
    """

    def __init__(self, path: Path, header: Header, *, opener: Opener = open_part) -> None:
        self.path = path
        self.size = 0
        self._file = opener(path)
        self._torn = False
        try:
            self.append(json.dumps({"recording": asdict(header)}).encode() + b"\n")
        except OSError:
            self._file.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, lines: bytes) -> None:
        """Write lines.

        Raises:
            OSError: they are not written; the file is as it was.
        """
        data = b"\n" + lines if self._torn else lines
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError:
            self._undo()
            raise
        self._torn = False
        self.size += len(data)

    def close(self) -> None:
        """Close the file; what was written is on its way to the disk."""
        self._file.close()

    def _undo(self) -> None:
        try:
            self._file.truncate(self.size)
        except OSError:
            # The next line starts behind what is left of this one.
            self._torn = True


def read_part(path: Path) -> Part | None:
    """Return a recording, None if nothing is in it: whoever made it came no further.

    Raises:
        TraceError: it was made by another version, or its header is lost.
        OSError: it cannot be read.
    """
    torn = 0
    header: Header | None = None
    records: list[Record] = []
    gaps: list[Missed] = []
    for row in _rows(path):
        try:
            if row is None:
                torn += 1
            elif "recording" in row:
                header = _header(path, row["recording"])
            elif "gap" in row:
                gaps.append(_MISSED.validate_python(row["gap"]))
            else:
                records.append(Record.from_row(row))
        except (TornLine, ValidationError):
            torn += 1
    if header is None:
        if records or gaps or torn > 1:
            raise TraceError(f"{path}: {_LOST}", hint="look at it, then move it away")
        return None
    return Part(header=header, records=records, gaps=gaps, torn=torn)


def _rows(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield what the lines hold, None for one that was cut off."""
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            yield row if isinstance(row, dict) else None


_MISSED = TypeAdapter(Missed)
_HEADER = TypeAdapter(Header)


def _header(path: Path, row: object) -> Header:
    if isinstance(row, dict) and row.get("version") != VERSION:
        raise TraceError(
            f"{path}: was recorded by another version of autotune",
            hint="finish it with that one, or move it away",
        )
    return _HEADER.validate_python(row)
