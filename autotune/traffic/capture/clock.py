"""The time of arrivals."""

from __future__ import annotations

import time
from collections.abc import Callable

_PLAIN = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _elapsed_s() -> float:
    return time.clock_gettime(_PLAIN)


def steady_clock(
    *, wall: Callable[[], float] = time.time, timer: Callable[[], float] = _elapsed_s
) -> Callable[[], float]:
    """Return a clock of seconds since 1970 that goes on evenly when the machine's clock is set.

    Of traffic it is the time between requests that matters. A clock that is set back would lay
    an hour over the one before, and keep a file open until it has caught up.

    Args:
        wall: the machine's clock, which is looked at once.
        timer: seconds that only go forward, also while the machine sleeps.
    """
    zero_s = wall() - timer()
    return lambda: zero_s + timer()


now_s = steady_clock()
"""Of all that one process records: their times are compared."""

_SET_S = 0.1
"""By which the machine's clock has been set rather than slewed."""


def steadied(
    moment_s: float,
    *,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = now_s,
) -> float:
    """Return what a steady clock showed at a moment that the machine's clock showed just now."""
    shift_s = steady() - wall()
    return moment_s + shift_s if abs(shift_s) > _SET_S else moment_s
