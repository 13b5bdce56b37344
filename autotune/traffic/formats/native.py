"""JSON Lines as this project and Mooncake write them.

``vllm bench serve --dataset-name timed_trace`` reads the same files. A row is
``{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [one per block]}``;
``max_tokens``, ``priority``, ``cached_tokens``, ``model`` and what a recorder knows may follow.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import TraceError
from autotune.traffic.formats.base import Reader, fault, numbered_lines, parsed_lines
from autotune.traffic.formats.rows import parse_row, reason_of
from autotune.traffic.model import (
    DEFAULT_BLOCK_SIZE,
    MAX_HASH_ID,
    MAX_TOKENS,
    YEAR_MS,
    ReadNotes,
    Trace,
    TraceRequest,
    blocks_of,
)
from autotune.traffic.recording import Gap, Recording
from autotune.user_files import read_small

# Mooncake's size first, then that of vLLM and Qwen-Bailian: short traces fit several.
_BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024)
# Clocks since 1970 give at least so much: in seconds from 2001 on, in µs from 1973 on.
_CLOCK_OF_SECONDS = 1e9
_CLOCK_OF_MICROSECONDS = 1e14
# Of a recording that is shorter or faster the times are more likely seconds than ms.
_SHORT_S = 10.0
_FAST_PER_S = 1000.0

SUFFIX = ".jsonl"
"""Of the traces that we write, and of all that may have a description beside them."""


_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Moment = Annotated[float, Field(allow_inf_nan=False)]


class _Gap(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    start_ms: _Moment
    end_ms: _Moment
    requests: _Count
    reason: str


class _Recording(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    by: str
    completed: _Count = 0
    cancelled: _Count = 0
    failed: _Count = 0
    without_tokens: _Count = 0
    estimated_prompts: _Count = 0
    estimated_outputs: _Count = 0
    estimated_prefixes: _Count = 0
    torn: _Count = 0


class _Meta(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[1]
    block_size: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    prefixes_known: bool
    source: str
    captured_at: AwareDatetime | None = None
    requests: Annotated[int, Field(ge=1, lt=2**63)]
    sha256: str
    with_text: bool = False
    prefixes_estimated: bool = False
    gaps: tuple[_Gap, ...] = ()
    recording: _Recording | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """The requests of a file, with the line of each; ``hash_ids`` may be empty."""

    path: Path
    numbers: Sequence[int]
    requests: Sequence[TraceRequest]


def meta_path(path: Path) -> Path:
    """Return where the description of a trace lies: ``a.meta.json`` for ``a.jsonl``.

    Only names that end in ``SUFFIX`` have one, so that no two traces share it.
    """
    return path.with_suffix(".meta.json")


def read(path: Path) -> Trace:
    """Read a trace; its block size comes from ``NAME.meta.json``, else from the rows.

    ``NAME.meta.json`` belongs to ``NAME.jsonl`` alone: a file of another suffix has none.

    Raises:
        TraceError: a row is no request, hash ids do not fit the prompts, or the file beside
            it describes other traffic.
    """
    rows = read_rows(path)
    meta = _read_meta(path)
    if meta is None:
        known = any(request.hash_ids for request in rows.requests)
        return from_rows(rows, block_size=_inferred_block_size(rows), prefixes_known=known)
    _check_blocks(rows, meta.block_size)
    trace = Trace.build(
        _with_ids(rows, meta.block_size),
        block_size=meta.block_size,
        prefixes_known=meta.prefixes_known,
        source=meta.source,
        captured_at=meta.captured_at.isoformat() if meta.captured_at else None,
        with_text=meta.with_text,
        prefixes_estimated=meta.prefixes_estimated,
        gaps=tuple(Gap(**gap.model_dump()) for gap in meta.gaps),
        recording=Recording(**meta.recording.model_dump()) if meta.recording else None,
        notes=ReadNotes(
            unrecorded=sum(gap.requests for gap in meta.gaps),
            without_tokens=meta.recording.without_tokens if meta.recording else 0,
            estimated=sum(request.estimated or False for request in rows.requests),
        ),
    )
    if meta.sha256 != trace.sha256:
        raise TraceError(
            f"{meta_path(path)} describes other traffic than {path.name}",
            hint="the trace was changed after it was written; remove the .meta.json file to "
            "use it as it is",
        )
    return trace


def read_rows(path: Path) -> Rows:
    """Read the lines of a file.

    Raises:
        TraceError: a line is no request.
    """
    numbers: list[int] = []
    requests: list[TraceRequest] = []
    for number, request in parsed_lines(path, numbered_lines(path), parse_row):
        numbers.append(number)
        requests.append(request)
    return Rows(path, numbers, requests)


def from_rows(rows: Rows, *, block_size: int, prefixes_known: bool) -> Trace:
    """Return the trace of rows that no description says more of.

    Raises:
        TraceError: hash ids do not fit the prompts, or times are not in ms.
    """
    _check_blocks(rows, block_size)
    requests, from_clock = _from_first(rows.path, _with_ids(rows, block_size))
    bare = sum(not request.hash_ids for request in rows.requests)
    return Trace.build(
        requests,
        block_size=block_size,
        prefixes_known=prefixes_known,
        source=rows.path.name,
        notes=ReadNotes(
            from_clock=from_clock,
            without_ids=bare if prefixes_known else 0,
            estimated=sum(request.estimated or False for request in requests),
            perhaps_seconds=None if from_clock else _suspicious_s(requests),
        ),
    )


def _suspicious_s(requests: Sequence[TraceRequest]) -> float | None:
    """Return in how many seconds all came if that is so short that times may be in seconds."""
    times_ms = [request.timestamp_ms for request in requests]
    span_s = (max(times_ms) - min(times_ms)) / 1000
    # At the same moment is what somebody writes who has no times.
    if span_s == 0 or (span_s >= _SHORT_S and len(requests) / span_s <= _FAST_PER_S):
        return None
    return span_s


def _read_meta(path: Path) -> _Meta | None:
    # A link to a trace may have no description of its own.
    may_have = [each for each in (path, path.resolve()) if each.suffix == SUFFIX]
    if not may_have:
        return None
    beside = meta_path(may_have[0])
    if not os.path.exists(beside):  # noqa: PTH110  # Path.exists may raise
        beside = meta_path(may_have[-1])
    hint = "write it anew, or remove it to use the trace without a description"
    try:
        text = read_small(beside)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error.reason}"
        raise TraceError(f"{beside}: {reason}", hint=hint) from error
    try:
        return _Meta.model_validate_json(text)
    except ValidationError as error:
        raise TraceError(f"{beside}: {reason_of(error)}", hint=hint) from error


def _inferred_block_size(rows: Rows) -> int:
    counted = [
        (request.input_length, len(request.hash_ids))
        for request in rows.requests
        if request.hash_ids
    ]
    if not counted:
        return DEFAULT_BLOCK_SIZE
    tokens, blocks = np.array(counted).T
    fitting = [int(np.sum(-(-tokens // size) == blocks)) for size in _BLOCK_SIZES]
    return _BLOCK_SIZES[int(np.argmax(fitting))]


def _check_blocks(rows: Rows, block_size: int) -> None:
    for number, request in zip(rows.numbers, rows.requests, strict=True):
        wanted = blocks_of(request.input_length, block_size)
        if request.hash_ids and len(request.hash_ids) != wanted:
            raise fault(
                rows.path,
                number,
                f"hash_ids: {len(request.hash_ids)} ids for {request.input_length} prompt "
                f"tokens, blocks of {block_size} need {wanted}",
                hint="each block of the prompt has one id, the last one perhaps in part",
            )


def _with_ids(rows: Rows, block_size: int) -> list[TraceRequest]:
    """Give rows without hash ids such that nobody else has."""
    fresh = 1 + max((max(r.hash_ids) for r in rows.requests if r.hash_ids), default=-1)
    requests = []
    for number, given in zip(rows.numbers, rows.requests, strict=True):
        request = given
        if not given.hash_ids:
            end = fresh + blocks_of(given.input_length, block_size)
            if end > MAX_HASH_ID:
                raise fault(
                    rows.path,
                    number,
                    "hash_ids: missing, and other rows have the last",
                    hint="use smaller ids, or give every row its own",
                )
            request = replace(given, hash_ids=tuple(range(fresh, end)))
            fresh = end
        requests.append(request)
    return requests


def _from_first(path: Path, requests: list[TraceRequest]) -> tuple[list[TraceRequest], bool]:
    """Count from the first request if times lie a year or more after zero: clock time."""
    start_ms = min(request.timestamp_ms for request in requests)
    if start_ms < _CLOCK_OF_SECONDS:
        return requests, False
    if start_ms < YEAR_MS:
        raise TraceError(
            f"{path}: the first request comes {start_ms / 86_400_000:.1f} days after time zero",
            hint="timestamp is in ms; multiply clock time in seconds by 1000",
        )
    if start_ms >= _CLOCK_OF_MICROSECONDS:
        raise TraceError(
            f"{path}: timestamp: {start_ms:g} ms since 1970 is no time of today",
            hint="timestamp is in ms; divide µs by 1e3, ns by 1e6",
        )
    return [replace(r, timestamp_ms=r.timestamp_ms - start_ms) for r in requests], True


NATIVE = Reader(
    name="native",
    summary="JSON Lines with timestamp, input_length, output_length, hash_ids",
    recognises=lambda head: head.startswith("{"),
    read=read,
)
