"""JSON Lines as this project and Mooncake write them.

``vllm bench serve --dataset-name timed_trace`` reads the same files. A row is
``{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [one per block]}``;
``max_tokens``, ``priority``, ``cached_tokens`` and ``model`` may follow.
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
from autotune.traffic.formats.base import Reader, fault, numbered_lines
from autotune.traffic.model import (
    DEFAULT_BLOCK_SIZE,
    MAX_HASH_ID,
    MAX_PRIORITY,
    MAX_TOKENS,
    MIN_PRIORITY,
    YEAR_MS,
    Trace,
    TraceRequest,
    blocks_of,
)

# Mooncake's size first, then that of vLLM and Qwen-Bailian: short traces fit several.
_BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024)

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
HashId = Annotated[int, Field(ge=0, le=MAX_HASH_ID)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    timestamp: Annotated[float, Field(ge=0)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[HashId, ...] | None = None
    max_tokens: Tokens | None = None
    priority: Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    cached_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    model: str | None = None


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


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    row: _Row


def meta_path(path: Path) -> Path:
    """Return where the description of a trace lies: ``a.meta.json`` for ``a.jsonl``."""
    return path.with_suffix(".meta.json")


def read(path: Path) -> Trace:
    """Read a trace; its block size comes from ``NAME.meta.json``, else from the rows.

    Raises:
        TraceError: a row is no request, hash ids do not fit the prompts, or the file beside
            it describes other traffic.
    """
    lines = [_Line(number, _parse(path, number, text)) for number, text in numbered_lines(path)]
    meta = _read_meta(path)
    block_size = meta.block_size if meta else _inferred_block_size(lines)
    _check_blocks(path, lines, block_size)
    requests, from_clock = _from_first(_requests(path, lines, block_size))
    trace = Trace.build(
        requests,
        block_size=block_size,
        prefixes_known=(
            meta.prefixes_known if meta else all(line.row.hash_ids is not None for line in lines)
        ),
        source=meta.source if meta else path.name,
        captured_at=meta.captured_at.isoformat() if meta and meta.captured_at else None,
        with_text=meta.with_text if meta else False,
        from_clock=from_clock,
    )
    if meta and meta.sha256 != trace.sha256:
        raise TraceError(
            f"{meta_path(path)} describes other traffic than {path.name}",
            hint="the trace was changed after it was written; remove the .meta.json file to "
            "use it as it is",
        )
    return trace


def _parse(path: Path, number: int, text: str) -> _Row:
    try:
        return _Row.model_validate_json(text)
    except ValidationError as error:
        raise fault(path, number, _reason(error)) from error


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{where}: {message}" if where else message


def _read_meta(path: Path) -> _Meta | None:
    beside = meta_path(path)
    if not os.path.exists(beside):  # noqa: PTH110  # Path.exists may raise
        # A link to a trace may have no description of its own.
        beside = meta_path(path.resolve())
    try:
        text = beside.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{beside}: {error}") from error
    try:
        return _Meta.model_validate_json(text)
    except ValidationError as error:
        raise TraceError(f"{beside}: {_reason(error)}") from error


def _inferred_block_size(lines: Sequence[_Line]) -> int:
    counted = [
        (line.row.input_length, len(line.row.hash_ids))
        for line in lines
        if line.row.hash_ids is not None
    ]
    if not counted:
        return DEFAULT_BLOCK_SIZE
    tokens, blocks = np.array(counted).T
    fitting = [int(np.sum(-(-tokens // size) == blocks)) for size in _BLOCK_SIZES]
    return _BLOCK_SIZES[int(np.argmax(fitting))]


def _check_blocks(path: Path, lines: Sequence[_Line], block_size: int) -> None:
    for line in lines:
        if line.row.hash_ids is None:
            continue
        wanted = blocks_of(line.row.input_length, block_size)
        if len(line.row.hash_ids) != wanted:
            raise fault(
                path,
                line.number,
                f"hash_ids: {len(line.row.hash_ids)} ids for {line.row.input_length} prompt "
                f"tokens, blocks of {block_size} need {wanted}",
            )


def _requests(path: Path, lines: Sequence[_Line], block_size: int) -> list[TraceRequest]:
    """Rows without hash ids get ids that nobody else has."""
    fresh = 1 + max((max(line.row.hash_ids) for line in lines if line.row.hash_ids), default=-1)
    requests = []
    for line in lines:
        row = line.row
        hash_ids = row.hash_ids
        if hash_ids is None:
            hash_ids = tuple(range(fresh, fresh + blocks_of(row.input_length, block_size)))
            fresh = hash_ids[-1] + 1
            if fresh > MAX_HASH_ID:
                raise fault(path, line.number, "hash_ids: missing, and other rows have the last")
        requests.append(
            TraceRequest(
                timestamp_ms=row.timestamp,
                input_length=row.input_length,
                output_length=row.output_length,
                hash_ids=hash_ids,
                max_tokens=row.max_tokens,
                priority=row.priority,
                cached_tokens=row.cached_tokens,
                model=row.model,
            )
        )
    return requests


def _from_first(requests: list[TraceRequest]) -> tuple[list[TraceRequest], bool]:
    """Count from the first request if times lie a year or more after zero: clock time."""
    start_ms = min(request.timestamp_ms for request in requests)
    if start_ms < YEAR_MS:
        return requests, False
    return [replace(r, timestamp_ms=r.timestamp_ms - start_ms) for r in requests], True


NATIVE = Reader(
    name="native",
    summary="JSON Lines with timestamp, input_length, output_length, hash_ids",
    recognises=lambda head: head.startswith("{"),
    read=read,
)
