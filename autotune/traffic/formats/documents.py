"""Rows of JSON and CSV files, one at a time: lists, JSON Lines, documents, tables.

What is read here may hold prompts and answers. No error quotes anything of it.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from autotune.errors import TraceError
from autotune.traffic.formats.base import (
    MAX_LINE_BYTES,
    BadLine,
    fault,
    first_line,
    first_lines,
    numbered_lines,
    opened,
    refuse_binary,
    unreadable,
)

Row = Mapping[str, Any]

MAX_VALUE_CHARACTERS = 2**30
"""Of one element of a list, or of a document that is read whole."""

_CHUNK_BYTES = 2**20
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"
# A word, a number or an escape that the end of a chunk cuts off is no longer than that.
_CUT_CHARACTERS = 16


def json_values(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield ``(line, value)`` for each element of a list, or for each value of a file of several.

    A list is never in memory as a whole.

    Raises:
        TraceError: the file cannot be read or is no JSON.
    """
    try:
        with opened(path) as file:
            refuse_binary(path, file)
            yield from _Values(path, file)
    except OSError as error:
        raise unreadable(path, error) from error


def table_rows(path: Path, *, wrapped_in: tuple[str, ...] = ()) -> Iterator[tuple[int, Any]]:
    """Yield ``(line, row)`` of a JSON list, of JSON Lines or of a CSV file with a header.

    A line of JSON Lines that is no JSON is yielded as a ``BadLine``, so that all are counted.

    Args:
        path: the file.
        wrapped_in: names under which a JSON object may hold the list of rows.

    Raises:
        TraceError: the file cannot be read or has another form.
    """
    begin = first_lines(path)[0]
    if begin not in "[{":
        yield from _csv_rows(path)
        return
    rows = _line_rows(path) if begin == "{" and _has_row(path) else json_values(path)
    for number, row in rows:
        inner = _wrapped(row, wrapped_in)
        if inner is None:
            yield number, row
        else:
            yield from ((number, each) for each in inner)


def as_row(value: object) -> Row:
    """Return a JSON object as it is.

    Raises:
        BadLine: it is something else, or no JSON at all.
    """
    if isinstance(value, BadLine):
        raise value
    if not isinstance(value, dict):
        raise BadLine(f"is {kind_of(value)}, not an object", hint="a request is a JSON object")
    return value


def kind_of(value: object) -> str:
    """Return what a JSON value is, without saying it."""
    if isinstance(value, str):
        return f"a text of {len(value):,} characters"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    names: dict[type, str] = {list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), "something else")


def _wrapped(row: object, names: tuple[str, ...]) -> list[object] | None:
    if not isinstance(row, dict):
        return None
    return next((row[name] for name in names if isinstance(row.get(name), list)), None)


def _has_row(path: Path) -> bool:
    """Say whether the first line is an object by itself."""
    try:
        return isinstance(json.loads(first_line(path)), dict)
    # Too long a line may be a document all the same.
    except (TraceError, ValueError, RecursionError):
        return False


def _line_rows(path: Path) -> Iterator[tuple[int, object]]:
    for number, content in numbered_lines(path):
        try:
            yield number, json.loads(content)
        except json.JSONDecodeError as error:
            yield number, _no_json(error)
        except UnicodeDecodeError as error:
            yield number, BadLine(f"not UTF-8 at byte {error.start + 1}", hint="write it as UTF-8")
        except (ValueError, RecursionError):
            yield number, _TOO_MUCH


def _csv_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield each row by the names of the header; cells may have line breaks."""
    csv.field_size_limit(MAX_LINE_BYTES)
    try:
        with opened(path) as file:
            refuse_binary(path, file)
            text = codecs.getreader("utf-8")(file)
            reader = csv.reader(text, strict=True)
            names: list[str] = []
            for cells in reader:
                if not any(cells):
                    continue
                if not names:
                    names = [name.strip() for name in cells]
                elif len(cells) != len(names):
                    columns = f"{len(cells)} columns instead of {len(names)}"
                    yield (
                        reader.line_num,
                        BadLine(columns, hint="each row has those of the header"),
                    )
                else:
                    yield reader.line_num, dict(zip(names, cells, strict=True))
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8", hint="write it as UTF-8") from error
    except csv.Error as error:
        raise TraceError(f"{path}: is no CSV: {error}", hint="export it once more") from error


def _no_json(error: json.JSONDecodeError) -> BadLine:
    reason = f"invalid JSON: {error.msg.lower()} at character {error.colno}"
    return BadLine(reason, hint="the file may be cut off; export it once more")


_TOO_MUCH = BadLine(
    "invalid JSON: nested too deeply, or a number of thousands of digits",
    hint="a request is a plain JSON object",
)


class _Values:
    """The JSON values of a file, decoded from a text that grows and is cut off in front."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = 0
        self._line = 1
        self._ended = False

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        in_list = self._next() == "["
        if in_list:
            self._at += 1
        while character := self._next():
            if in_list and character in ",]":
                self._at += 1
                in_list = character == ","
                continue
            yield self._line, self._value()

    def _next(self) -> str:
        """Move to the next character that is not blank and return it, '' at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._line += self._text[self._at] == "\n"
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more(_CHUNK_BYTES)

    def _value(self) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended or not self._is_cut_off(error):
                    line = self._line + self._text.count("\n", self._at, error.pos)
                    bad = _no_json(error)
                    raise fault(self._path, line, bad.reason, hint=bad.hint) from None
            except (ValueError, RecursionError):
                raise fault(
                    self._path, self._line, _TOO_MUCH.reason, hint=_TOO_MUCH.hint
                ) from None
            else:
                # A number at the very end may go on.
                if end < len(self._text) or self._ended:
                    self._line += self._text.count("\n", self._at, end)
                    self._at = end
                    return value
            self._more(max(_CHUNK_BYTES, len(self._text) - self._at))

    def _is_cut_off(self, error: json.JSONDecodeError) -> bool:
        near_end = error.pos >= len(self._text) - _CUT_CHARACTERS
        return near_end or error.msg.startswith("Unterminated string")

    def _more(self, size: int) -> None:
        if len(self._text) - self._at > MAX_VALUE_CHARACTERS:
            reason = f"a JSON value of more than {MAX_VALUE_CHARACTERS // 2**30} GiB"
            raise fault(self._path, self._line, reason, hint="cut the file into parts")
        raw = self._file.read(size)
        self._ended = not raw
        try:
            new = self._decode(raw, self._ended)
        except UnicodeDecodeError as error:
            raise fault(
                self._path, self._line, "not UTF-8 from here on", hint="write it as UTF-8"
            ) from error
        self._text = self._text[self._at :] + new
        self._at = 0
