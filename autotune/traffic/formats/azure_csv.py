"""The Azure LLM inference traces of 2023 and 2024.

``TIMESTAMP,ContextTokens,GeneratedTokens`` with up to nine digits of a second, and in 2024
with an offset from UTC. Prefixes are not recorded. Source: Azure Public Dataset, CC-BY-4.0
(Patel et al., Splitwise, ISCA 2024; Stojkovic et al., DynamoLLM, HPCA 2025).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import TraceError
from autotune.traffic.formats.base import Reader, fault, numbered_lines
from autotune.traffic.model import (
    DEFAULT_BLOCK_SIZE,
    MAX_TOKENS,
    Trace,
    TraceRequest,
    blocks_of,
)

_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_STAMP = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(?P<digits>\d{1,9}))?"
    r"(?P<offset>Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_NS_PER_S = 1_000_000_000
# So far from both ends of the calendar that neither an offset nor a window leaves it.
_YEARS = range(1970, 9998)


@dataclass(frozen=True, slots=True)
class _Row:
    arrival_ns: int
    context_tokens: int
    generated_tokens: int


def read(path: Path) -> Trace:
    """Read an Azure trace; times count from the first request that has tokens.

    Rows without prompt or output tokens are left out and counted in ``Trace.notes``.

    Raises:
        TraceError: a line is no row, or no row has tokens.
    """
    lines = numbered_lines(path)
    number, head = next(lines)
    if head != _HEADER:
        raise fault(path, number, f"the header is not {_HEADER}")
    rows = [_parse(path, number, text) for number, text in lines]
    kept = [row for row in rows if row.context_tokens and row.generated_tokens]
    if not kept:
        raise TraceError(f"{path}: no rows with prompt and output tokens")
    first_ns = min(row.arrival_ns for row in kept)
    return Trace.build(
        _requests(kept, first_ns),
        block_size=DEFAULT_BLOCK_SIZE,
        prefixes_known=False,
        source=path.name,
        captured_at=_clock(first_ns),
        without_tokens=len(rows) - len(kept),
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


def _parse(path: Path, number: int, text: str) -> _Row:
    cells = text.split(",")
    if len(cells) != 3:
        raise fault(path, number, f"{len(cells)} columns instead of 3")
    try:
        return _Row(
            arrival_ns=_arrival_ns(cells[0]),
            context_tokens=_tokens("ContextTokens", cells[1]),
            generated_tokens=_tokens("GeneratedTokens", cells[2]),
        )
    except ValueError as error:
        raise fault(path, number, str(error)) from error


def _arrival_ns(cell: str) -> int:
    """Return nanoseconds since 1970; a stamp without an offset is read as UTC."""
    found = _STAMP.fullmatch(cell)
    if found is None:
        raise ValueError(f"TIMESTAMP: {cell!r} is no time such as 2023-11-16 18:15:46.6805900")
    second, digits, offset = found.group("second", "digits", "offset")
    moment = datetime.fromisoformat(second + (offset or "Z"))
    if moment.year not in _YEARS:
        raise ValueError(f"TIMESTAMP: {cell!r} is not of the years {_YEARS[0]} to {_YEARS[-1]}")
    return int(moment.timestamp()) * _NS_PER_S + int((digits or "").ljust(9, "0"))


def _clock(moment_ns: int) -> str:
    seconds, rest_ns = divmod(moment_ns, _NS_PER_S)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // 1000).isoformat()


def _tokens(column: str, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise ValueError(f"{column}: {cell!r} is no count of tokens")
    # The length is looked at first: a number of thousands of digits is refused, not converted.
    if len(cell) > len(str(MAX_TOKENS)) or int(cell) > MAX_TOKENS:
        raise ValueError(f"{column}: {cell[:20]} is more than {MAX_TOKENS} tokens")
    return int(cell)


AZURE = Reader(
    name="azure",
    summary=f"CSV with {_HEADER}",
    recognises=lambda head: head.startswith("TIMESTAMP,"),
    read=read,
)
