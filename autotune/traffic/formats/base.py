"""What all readers share: lines with their numbers, and what a reader yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import TraceError
from autotune.traffic.model import Trace

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Reader:
    """One trace format.

    Attributes:
        name: what ``--format`` calls it.
        summary: the form in a few words, for hints.
        recognises: tells from the first line that is not blank.
        read: reads a file, raises TraceError with ``file:line``.
    """

    name: str
    summary: str
    recognises: Callable[[str], bool]
    read: Callable[[Path], Trace]


def fault(path: Path, line: int, reason: str, *, hint: str = "") -> TraceError:
    """Return the error for one line of a trace file."""
    return TraceError(f"{path}:{line}: {reason}", hint=hint)


def read_bytes(path: Path) -> bytes:
    """Return the content of ``path``.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(
            f"{path}: {error.strerror or error}",
            hint="name a trace file that exists, or demo:mixed",
        ) from error


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield ``(line number, text)`` of every line that is not blank.

    Raises:
        TraceError: the file cannot be read, is empty or is not UTF-8.
    """
    content = read_bytes(path).removeprefix(_BYTE_ORDER_MARK)
    if not content.strip():
        raise TraceError(f"{path}: the file is empty")
    for number, raw in enumerate(content.split(b"\n"), start=1):
        try:
            text = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise fault(path, number, f"not UTF-8 at byte {error.start + 1}") from error
        if text:
            yield number, text


def first_line(path: Path) -> str:
    """Return the first line of ``path`` that is not blank."""
    return next(numbered_lines(path))[1]
