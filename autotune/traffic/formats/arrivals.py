"""Times for requests of which none are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from autotune.errors import UsageError
from autotune.traffic.formats.base import ReadOptions
from autotune.traffic.formats.recorded import Found, Recorded
from autotune.traffic.hashing import key, uniforms

_ARRIVALS = 101
_LOW_RATE, _HIGH_RATE = 1e-6, 1e6


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
