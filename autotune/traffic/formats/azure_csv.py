"""The Azure inference traces of 2023, 2024 and 2025.

``TIMESTAMP,ContextTokens,GeneratedTokens`` with up to nine digits of a second, or none; since
2024 with an offset from UTC. The multimodal trace of 2025 has ``NumImages`` as well. Columns
are found by their names. Prefixes are not recorded. Source: Azure Public Dataset, CC-BY-4.0
(Patel et al., Splitwise, ISCA 2024; Stojkovic et al., DynamoLLM, HPCA 2025; Qiu et al.,
ModServe, SoCC 2025).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import TraceError
from autotune.traffic.formats.base import (
    BadLine,
    Reader,
    fault,
    numbered_lines,
    parsed_lines,
    shown,
)
from autotune.traffic.formats.clock import clock_time, stamp_ns
from autotune.traffic.model import (
    DEFAULT_BLOCK_SIZE,
    MAX_TOKENS,
    ReadNotes,
    Trace,
    TraceRequest,
    blocks_of,
)
from objectives.errors import nearest

_TIME, _CONTEXT, _GENERATED, _IMAGES = "TIMESTAMP", "ContextTokens", "GeneratedTokens", "NumImages"
_NEEDED = (_TIME, _CONTEXT, _GENERATED)
_KNOWN = (*_NEEDED, _IMAGES)
_HEADER = ",".join(_NEEDED)
_NAME = re.compile(r"([\w.;|()/%-]+( [\w.;|()/%-]+){0,2})?")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", re.ASCII)
_HEADLESS = re.compile(rf"{_STAMP.pattern}[^,\s]*(?:,\s*\d+)+", re.ASCII)
_STAMP_HINT = "times are written 2023-11-16 18:15:46.6805900, perhaps with +00:00 or Z behind"
_COUNT_HINT = f"counts are whole numbers from 0 to {MAX_TOKENS}"


@dataclass(frozen=True, slots=True)
class _Row:
    arrival_ns: int
    context_tokens: int
    generated_tokens: int
    images: int


def read(path: Path) -> Trace:
    """Read an Azure trace; times count from the first request that has tokens.

    Rows without prompt or output tokens are left out and counted in ``Trace.notes``, and so
    are rows with images, which are replayed as text.

    Raises:
        TraceError: a line is no row, or no row has tokens.
    """
    lines = numbered_lines(path)
    number, head = next(lines)
    try:
        parse = _row_parser(head.decode("utf-8", errors="replace"))
    except BadLine as bad:
        raise fault(path, number, bad.reason, hint=bad.hint) from bad
    rows = [row for _, row in parsed_lines(path, lines, parse)]
    kept = [row for row in rows if row.context_tokens and row.generated_tokens]
    if not kept:
        raise TraceError(
            f"{path}: no rows with prompt and output tokens",
            hint="a request needs at least one token of each",
        )
    first_ns = min(row.arrival_ns for row in kept)
    return Trace.build(
        _requests(kept, first_ns),
        block_size=DEFAULT_BLOCK_SIZE,
        prefixes_known=False,
        source=path.name,
        captured_at=clock_time(first_ns),
        notes=ReadNotes(
            without_tokens=len(rows) - len(kept),
            with_images=sum(row.images > 0 for row in kept),
        ),
    )


def _requests(rows: list[_Row], first_ns: int) -> list[TraceRequest]:
    requests = []
    fresh = 0
    for row in rows:
        blocks = blocks_of(row.context_tokens, DEFAULT_BLOCK_SIZE)
        requests.append(
            TraceRequest(
                # A quotient of integers is rounded once: no digit of the recording is lost.
                timestamp_ms=(row.arrival_ns - first_ns) / 1_000_000,
                input_length=row.context_tokens,
                output_length=row.generated_tokens,
                hash_ids=tuple(range(fresh, fresh + blocks)),
            )
        )
        fresh += blocks
    return requests


def _row_parser(head: str) -> Callable[[str], _Row]:
    """Return what reads the rows below the header ``head``."""
    names = [name.strip() for name in head.split(",")]
    _check_header(names)
    time, context, generated = (names.index(name) for name in _NEEDED)
    images = names.index(_IMAGES) if _IMAGES in names else None

    def parse(text: str) -> _Row:
        cells = text.split(",")
        if len(cells) != len(names):
            columns = f"{len(cells)} columns instead of {len(names)}"
            raise BadLine(columns, hint=f"each row has {','.join(names)}")
        return _Row(
            arrival_ns=_arrival_ns(cells[time].strip()),
            context_tokens=_count(_CONTEXT, cells[context].strip()),
            generated_tokens=_count(_GENERATED, cells[generated].strip()),
            images=0 if images is None else _count(_IMAGES, cells[images].strip()),
        )

    return parse


def _named(column: str) -> str:
    """Return a column in quotes, unless it is none: what lies there may be anybody's prompt."""
    return f" {shown(column)}" if _NAME.fullmatch(column) else ""


def _check_header(names: list[str]) -> None:
    hint = f"the first line is {_HEADER}, in any order, perhaps with {_IMAGES}"
    if _STAMP.match(names[0]):
        raise BadLine("the header is missing", hint=f"put {_HEADER} on the first line")
    unknown = [name for name in names if name not in _KNOWN]
    if unknown:
        raise BadLine(
            f"the header has an unknown column{_named(unknown[0])}",
            hint=nearest(unknown[0][:100], _KNOWN) or hint,
        )
    for name in _KNOWN:
        if names.count(name) > 1:
            raise BadLine(f"the header names {name} twice", hint=hint)
    for name in _NEEDED:
        if name not in names:
            raise BadLine(f"the header lacks {name}", hint=hint)


def _arrival_ns(cell: str) -> int:
    """Return nanoseconds since 1970; a stamp without an offset is read as UTC."""
    try:
        return stamp_ns(cell)[0]
    except ValueError as error:
        raise BadLine(f"{_TIME}: {shown(cell)} {error}", hint=_STAMP_HINT) from error


def _count(column: str, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise BadLine(f"{column}: {shown(cell)} is no count", hint=_COUNT_HINT)
    # The length is looked at first: a number of thousands of digits is refused, not converted.
    if len(cell) > len(str(MAX_TOKENS)) or int(cell) > MAX_TOKENS:
        raise BadLine(f"{column}: {cell[:20]} is more than {MAX_TOKENS}", hint=_COUNT_HINT)
    return int(cell)


def _recognises(head: str) -> bool:
    if head[0] in "[{":
        return False
    return any(name in head for name in _NEEDED) or _HEADLESS.fullmatch(head) is not None


AZURE = Reader(
    name="azure",
    summary=f"CSV with {_HEADER}",
    recognises=_recognises,
    read=read,
)
