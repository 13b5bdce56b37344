"""From what a reader found in a log to a trace, with everything counted that was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.errors import TraceError
from autotune.traffic.capture.blocks import BLOCK_SIZE
from autotune.traffic.formats.clock import NS_PER_MS, clock_time
from autotune.traffic.formats.prefixes import prefixes_of
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded
from autotune.traffic.model import DEFAULT_BLOCK_SIZE, ReadNotes, Trace, TraceRequest, blocks_of


def assembled(
    path: Path,
    found: Iterable[Found],
    *,
    remarks: Sequence[str] = (),
    lacking: Sequence[str] = (),
    details: Sequence[str] = (),
    block_size: int | None = None,
    is_clock_time: bool = False,
) -> Trace:
    """Return the trace of what was found, counted from its first request.

    Args:
        path: of the file.
        found: all that its rows are.
        remarks: sentences on how it was read.
        lacking: sentences on rows that were left out for what the file does not say of them.
        details: what ``TraceMeta.source`` says beside the name of the file.
        block_size: prompt tokens of one hash id; None takes the one that texts are hashed by where
            there are some.
        is_clock_time: arrivals count from 1970.

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
            hint=" ".join([*lacking, *notes.sentences()]) or "a trace needs at least one request",
        )
    if block_size is None:
        has_text = any(each.text for each in kept)
        block_size = BLOCK_SIZE if has_text else DEFAULT_BLOCK_SIZE
    prefixes = prefixes_of(kept, block_size)
    known = any(prefixes.hash_ids)
    first_ns = min(request.arrival_ns or 0 for request in kept)
    return Trace.build(
        _requests(kept, prefixes.hash_ids, first_ns, block_size),
        block_size=block_size,
        prefixes_known=known,
        prefixes_estimated=prefixes.estimated,
        source="; ".join((path.name, *details)),
        captured_at=clock_time(first_ns) if is_clock_time else None,
        notes=replace(
            notes,
            without_ids=prefixes.hash_ids.count(()) if known else 0,
            estimated=sum(each.estimated for each in kept),
            remarks=(*remarks, *lacking),
        ),
    )


def _requests(
    kept: Sequence[Recorded], hash_ids: Sequence[tuple[int, ...]], first_ns: int, block_size: int
) -> Iterator[TraceRequest]:
    """Yield requests; a prompt of which nothing is known has blocks that nobody else has."""
    fresh = 1 + max((max(ids, default=-1) for ids in hash_ids), default=-1)
    for each, known in zip(kept, hash_ids, strict=True):
        ids = known
        if not ids:
            end = fresh + blocks_of(each.input_length, block_size)
            ids, fresh = tuple(range(fresh, end)), end
        yield TraceRequest(
            # A quotient of integers is rounded once: no digit of the recording is lost.
            timestamp_ms=((each.arrival_ns or 0) - first_ns) / NS_PER_MS,
            input_length=each.input_length,
            output_length=each.output_length,
            hash_ids=ids,
            max_tokens=each.max_tokens,
            cached_tokens=each.cached_tokens,
            model=each.model,
            outcome=each.outcome,
            ttft_ms=each.ttft_ms,
            e2e_ms=each.e2e_ms,
            estimated=each.estimated or None,
        )
