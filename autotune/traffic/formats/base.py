"""What all readers share: files that can be read, lines with their numbers, faults in words."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO, TypeVar

from autotune.errors import TraceError, UsageError
from autotune.traffic.model import Trace

Value = TypeVar("Value")
Raw = TypeVar("Raw")

MAX_LINE_BYTES = 256 * 2**20
"""More than the ids of any prompt need; a file without line breaks ends here."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEAD_BYTES = 4096
_SNIFFED_BYTES = 64 * 2**10
_SHOWN_CHARACTERS = 40
_NOT_TEXT = (
    (b"\x1f\x8b", "is compressed with gzip", "gunzip it first: gunzip -k FILE"),
    (b"BZh", "is compressed with bzip2", "unpack it first: bunzip2 -k FILE"),
    (b"\xfd7zXZ\x00", "is compressed with xz", "unpack it first: xz -dk FILE"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "unpack it first: zstd -d FILE"),
    (b"PK\x03\x04", "is a zip archive", "unzip it first and name the file that was in it"),
    (b"PAR1", "is a Parquet file", "write its rows as JSON Lines first"),
    (b"\xff\xfe", "is in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "is in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE"),
)
_EXISTING = "name a trace file that exists, or demo:mixed"
_TEXT = "a trace is text in UTF-8, one request a line"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What some forms leave open, and the user says.

    Attributes:
        tokenizer: name or path of the tokenizer that counts texts; None estimates.
        rate_per_s: mean rate of the arrivals that are made where a form has no times.
        seed: of these arrivals; None is 0.
        answers: the file of answers that belongs to a file of requests.
    """

    tokenizer: str | None = None
    rate_per_s: float | None = None
    seed: int | None = None
    answers: Path | None = None

    def given(self) -> dict[str, str]:
        """Return the command line's names of those that were given, by their own."""
        names = {
            "tokenizer": "--tokenizer",
            "rate_per_s": "--rate",
            "seed": "--seed",
            "answers": "--answers",
        }
        return {name: option for name, option in names.items() if getattr(self, name) is not None}


NO_OPTIONS = ReadOptions()
TIMELESS = frozenset({"rate_per_s", "seed"})
"""The options of forms that may lack times."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One trace format.

    Attributes:
        name: what ``--format`` calls it.
        summary: the form in a few words, for hints.
        recognises: tells from the first line that is not blank, or from the first lines where
            JSON goes on after it.
        read: reads a file, raises TraceError with ``file:line``.
        takes: those of ``ReadOptions`` that the form has a use for.
        read_as: reads with options; None where it takes none.
    """

    name: str
    summary: str
    recognises: Callable[[str], bool]
    read: Callable[[Path], Trace]
    takes: frozenset[str] = field(default=frozenset())
    read_as: Callable[[Path, ReadOptions], Trace] | None = None

    def read_with(self, path: Path, options: ReadOptions) -> Trace:
        """Read ``path``.

        Raises:
            TraceError: it cannot be read.
            UsageError: an option that the form has no use for was given.
        """
        for name, option in options.given().items():
            if name not in self.takes:
                raise UsageError(
                    f"{option} means nothing for {path.name}, which is read as {self.name}",
                    hint=f"leave {option} out; {self.name} is {self.summary}",
                )
        return self.read(path) if self.read_as is None else self.read_as(path, options)


class BadLine(Exception):
    """What is wrong with one line, for the reader that knows its number."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def fault(path: Path, line: int, reason: str, *, hint: str = "") -> TraceError:
    """Return the error for one line of a trace file."""
    return TraceError(f"{path}:{line}: {reason}", hint=hint)


def shown(text: str) -> str:
    """Return ``text`` in quotes, short and without characters that move a cursor."""
    rest = "…" if len(text) > _SHOWN_CHARACTERS else ""
    return ascii(text[:_SHOWN_CHARACTERS]) + rest


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line number, content)`` of every line that is not blank, one at a time.

    Raises:
        TraceError: the file cannot be read, is no text, or has nothing but blank lines.
    """
    empty = True
    try:
        with opened(path) as file:
            refuse_binary(path, file)
            for number in count(1):
                raw = file.readline(MAX_LINE_BYTES + 1)
                if not raw:
                    break
                if len(raw) > MAX_LINE_BYTES:
                    reason = f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB"
                    raise fault(path, number, reason, hint=_TEXT)
                content = raw.strip()
                if content:
                    empty = False
                    yield number, content
    except OSError as error:
        raise unreadable(path, error) from error
    if empty:
        raise TraceError(f"{path}: the file is empty", hint=_EXISTING)


def first_line(path: Path) -> str:
    """Return the first line of ``path`` that is not blank."""
    number, content = next(numbered_lines(path))
    try:
        return _decoded(content)
    except BadLine as bad:
        raise fault(path, number, bad.reason, hint=bad.hint) from bad


def first_lines(path: Path) -> str:
    """Return the beginning of ``path``: its first line, or so many bytes of what may be JSON.

    A list may be one line of any length, of which no more is read.

    Raises:
        TraceError: it cannot be read, is empty or is no text.
    """
    try:
        with opened(path) as file:
            refuse_binary(path, file)
            head = file.read(_SNIFFED_BYTES).decode("utf-8", errors="replace").lstrip()
    except OSError as error:
        raise unreadable(path, error) from error
    return head if head.startswith(("[", "{")) else first_line(path)


def parsed_lines(
    path: Path, lines: Iterator[tuple[int, bytes]], parse: Callable[[str], Value]
) -> Iterator[tuple[int, Value]]:
    """Yield ``(line number, value)``; a bad line ends it, once the others are counted.

    Args:
        path: for messages.
        lines: as ``numbered_lines`` yields them.
        parse: raises BadLine for a line that it cannot read.

    Raises:
        TraceError: for the first bad line; it says how many there are.
    """
    return parsed(path, lines, lambda content: parse(_decoded(content)))


def parsed(
    path: Path,
    numbered: Iterator[tuple[int, Raw]],
    parse: Callable[[Raw], Value],
    *,
    kind: str = "lines",
) -> Iterator[tuple[int, Value]]:
    """Do as ``parsed_lines`` with what is no line, but a ``kind`` that begins on one."""
    first: tuple[int, BadLine] | None = None
    total = bad = 0
    for number, content in numbered:
        total += 1
        try:
            value = parse(content)
        except BadLine as error:
            bad += 1
            first = first or (number, error)
            continue
        if first is None:
            yield number, value
    if first is not None:
        number, cause = first
        several = f"; {bad:,} of {total:,} {kind} cannot be read" if bad > 1 else ""
        raise fault(path, number, cause.reason + several, hint=cause.hint) from cause


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 at byte {error.start + 1}", hint=_TEXT) from error


def opened(path: Path) -> BinaryIO:
    """Open a regular file: a pipe would be waited for, and cannot be read twice.

    Raises:
        TraceError: it is no regular file.
        OSError: it cannot be read; ``unreadable`` says it in words.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:
        raise TraceError(f"{path}: is no name of a file", hint=_EXISTING) from error
    if stat.S_ISDIR(mode):
        raise TraceError(f"{path}: is a folder", hint="name the trace file in it")
    if not stat.S_ISREG(mode):
        raise TraceError(
            f"{path}: is no regular file", hint="write the trace to a file first and name that"
        )
    return path.open("rb")


def unreadable(path: Path, error: OSError) -> TraceError:
    """Return the error for a file that cannot be read."""
    denied = isinstance(error, PermissionError)
    hint = "make it readable, or run as its owner" if denied else _EXISTING
    return TraceError(f"{path}: {error.strerror or error}", hint=hint)


def refuse_binary(path: Path, file: BinaryIO) -> None:
    """Leave ``file`` behind its byte order mark, if it is text.

    Raises:
        TraceError: it is a known kind of binary file, or has zeros.
    """
    head = file.read(_HEAD_BYTES)
    for magic, what, hint in _NOT_TEXT:
        if head.startswith(magic):
            raise TraceError(f"{path}: {what}", hint=hint.replace("FILE", str(path)))
    if b"\0" in head:
        raise TraceError(f"{path}: is a binary file, no text", hint=_TEXT)
    file.seek(len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0)
