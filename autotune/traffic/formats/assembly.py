"""From what a reader found in a log to a trace, with everything counted that was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

import numpy as np

from autotune.errors import TraceError, UsageError
from autotune.traffic.formats.base import ReadOptions
from autotune.traffic.formats.clock import clock_time
from autotune.traffic.hashing import key, uniforms
from autotune.traffic.model import DEFAULT_BLOCK_SIZE, ReadNotes, Trace, TraceRequest, blocks_of

_NS_PER_MS = 1_000_000
_ARRIVALS = 101
_LOW_RATE, _HIGH_RATE = 1e-6, 1e6


class LeftOut(Enum):
    """Why a row is no request to replay; see ``ReadNotes``, which counts each."""

    FAILED = auto()
    WITHOUT_TOKENS = auto()
    NOT_REQUESTS = auto()
    FROM_CACHE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request of a log.

    Attributes:
        arrival_ns: since 1970 or the file's own zero; None in a form without times.
        input_length: tokens of the prompt.
        output_length: tokens generated.
        hash_ids: of the blocks of the prompt, () if unknown.
        max_tokens: the limit that the client asked for, None if unknown.
        cached_tokens: prompt tokens that a prefix cache held, None if unknown.
        model: the model that was asked for, None if unknown.
    """

    arrival_ns: int | None
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    cached_tokens: int | None = None
    model: str | None = None


Found = Recorded | LeftOut


def request_or_left_out(recorded: Recorded) -> Found:
    """Return a request that has prompt and output tokens as it is."""
    if recorded.input_length and recorded.output_length:
        return recorded
    return LeftOut.WITHOUT_TOKENS


def assembled(
    path: Path,
    found: Iterable[Found],
    *,
    remarks: Sequence[str] = (),
    details: Sequence[str] = (),
    block_size: int = DEFAULT_BLOCK_SIZE,
    is_clock_time: bool = False,
    lengths_estimated: bool = False,
) -> Trace:
    """Return the trace of what was found, counted from its first request.

    Args:
        path: of the file.
        found: all that its rows are.
        remarks: sentences on how it was read.
        details: what ``TraceMeta.source`` says beside the name of the file.
        block_size: prompt tokens of one hash id.
        is_clock_time: arrivals count from 1970.
        lengths_estimated: lengths were not counted in tokens.

    Raises:
        TraceError: nothing is left, or arrivals are more than a year apart.
    """
    left_out: Counter[LeftOut] = Counter()
    kept: list[Recorded] = []
    for each in found:
        if isinstance(each, LeftOut):
            left_out[each] += 1
        else:
            kept.append(each)
    notes = ReadNotes(
        failed=left_out[LeftOut.FAILED],
        without_tokens=left_out[LeftOut.WITHOUT_TOKENS],
        not_requests=left_out[LeftOut.NOT_REQUESTS],
        from_cache=left_out[LeftOut.FROM_CACHE],
    )
    if not kept:
        raise TraceError(
            f"{path}: no request with prompt and output tokens",
            hint=" ".join(notes.sentences()) or "a trace needs at least one request",
        )
    known = any(request.hash_ids for request in kept)
    first_ns = min(request.arrival_ns or 0 for request in kept)
    bare = sum(not request.hash_ids for request in kept) if known else 0
    return Trace.build(
        _requests(kept, first_ns, block_size),
        block_size=block_size,
        prefixes_known=known,
        source="; ".join((path.name, *details)),
        captured_at=clock_time(first_ns) if is_clock_time else None,
        notes=replace(
            notes,
            without_ids=bare,
            estimated=len(kept) if lengths_estimated else 0,
            remarks=tuple(remarks),
        ),
    )


def with_made_arrivals(
    path: Path, found: Sequence[Found], options: ReadOptions, *, why: str
) -> tuple[list[Found], str]:
    """Return requests at times that are made, in the order of the file, and a remark on that.

    Arrivals are a Poisson process whose first is at zero: the same rate and seed give the same
    times everywhere.

    Args:
        path: for messages.
        found: requests without times.
        options: have the rate and the seed.
        why: what has no times.

    Raises:
        UsageError: no rate was given, or none that is possible.
    """
    rate = options.rate_per_s
    if rate is None:
        raise UsageError(
            f"{path}: {why} no times, so arrivals have to be made",
            hint=f"say how many come per second: autotune trace import {path} "
            f"{path.stem}.trace.jsonl --rate 5",
        )
    if not _LOW_RATE <= rate <= _HIGH_RATE:
        raise UsageError(
            f"--rate {rate:g}: it must be from {_LOW_RATE:g} to {_HIGH_RATE:g}",
            hint="it is in requests per second",
        )
    seed = options.seed or 0
    requests = sum(isinstance(each, Recorded) for each in found)
    draws = uniforms(key(seed, _ARRIVALS), np.arange(max(requests - 1, 0), dtype=np.uint64))
    arrivals_s = np.concatenate([[0.0], np.cumsum(-np.log(draws) / rate)])
    # To the microsecond: finer digits could differ between C libraries.
    times_ns = iter((np.rint(arrivals_s * 1e6).astype(np.int64) * 1000).tolist())
    made: list[Found] = [
        replace(each, arrival_ns=next(times_ns)) if isinstance(each, Recorded) else each
        for each in found
    ]
    remark = (
        f"The file has no times: arrivals were made, a Poisson process of {rate:g} requests/s "
        f"(seed {seed}), in the order of the file."
    )
    return made, remark


def made_source(options: ReadOptions) -> str:
    """Return in a few words that arrivals were made."""
    return f"arrivals made, {options.rate_per_s:g}/s, seed {options.seed or 0}"


def _requests(kept: Sequence[Recorded], first_ns: int, block_size: int) -> Iterable[TraceRequest]:
    """Yield requests; a prompt of which nothing is known has blocks that nobody else has."""
    fresh = 1 + max((max(each.hash_ids, default=-1) for each in kept), default=-1)
    for each in kept:
        ids = each.hash_ids
        if not ids:
            end = fresh + blocks_of(each.input_length, block_size)
            ids, fresh = tuple(range(fresh, end)), end
        yield TraceRequest(
            # A quotient of integers is rounded once: no digit of the recording is lost.
            timestamp_ms=((each.arrival_ns or 0) - first_ns) / _NS_PER_MS,
            input_length=each.input_length,
            output_length=each.output_length,
            hash_ids=ids,
            max_tokens=each.max_tokens,
            cached_tokens=each.cached_tokens,
            model=each.model,
        )
