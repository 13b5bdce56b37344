"""What a change of load should leave as it was: how bursty arrivals are, what prompts share."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass

from autotune.traffic.inspect import dispersion_index
from autotune.traffic.model import Trace

WINDOWS_S = (1.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """A trace in the figures by which two loads of it are compared.

    Attributes:
        rate_per_s: requests per second, None if all came at time zero.
        dispersion_1s: see ``dispersion_index``, in windows of one second.
        dispersion_10s: the same in windows of ten seconds.
        reuse: see ``reused_share``, with a cache without limit.
    """

    rate_per_s: float | None
    dispersion_1s: float | None
    dispersion_10s: float | None
    reuse: float | None

    @classmethod
    def of(cls, trace: Trace) -> Likeness:
        """Measure ``trace``."""
        short, long = (dispersion_index(trace, window_s=window_s) for window_s in WINDOWS_S)
        return cls(
            rate_per_s=len(trace.requests) / trace.duration_s if trace.duration_s > 0 else None,
            dispersion_1s=short,
            dispersion_10s=long,
            reuse=reused_share(trace),
        )


def reused_share(trace: Trace, *, cache_tokens: int | None = None) -> float | None:
    """Return the share of prompt tokens whose blocks came before, from the prompt's start on.

    None if prefixes are unknown.

    Args:
        trace: the traffic.
        cache_tokens: what a cache holds that forgets the blocks used longest ago, of one
            prompt its last ones first; None for one that forgets nothing.
    """
    if not trace.meta.prefixes_known:
        return None
    size = trace.meta.block_size
    most = None if cache_tokens is None else cache_tokens // size
    held: OrderedDict[int, None] = OrderedDict()
    reused = 0
    for request in trace.requests:
        known = itertools.takewhile(held.__contains__, request.hash_ids)
        reused += min(sum(1 for _ in known) * size, request.input_length)
        for hash_id in reversed(request.hash_ids):
            held[hash_id] = None
            if most is not None:
                held.move_to_end(hash_id)
        while most is not None and len(held) > most:
            held.popitem(last=False)
    return reused / int(trace.input_lengths.sum())
