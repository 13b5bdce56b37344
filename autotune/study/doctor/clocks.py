"""The clock: whether it runs evenly, who keeps it, and when its zone changes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from autotune.study.doctor.results import Result

SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")

_MOMENT_S = 0.25
_UNEVEN_S = 0.02
_HORIZON_DAYS = 400
_SOON = timedelta(days=1)
_TIMEX_BYTES = 208
"""Size of the kernel's ``struct timex``, rounded up; its first field of 4 bytes is the mode."""
_UNSYNCHRONIZED = 5
"""What ``adjtimex`` returns while nobody keeps the clock."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What is known of the clock.

    Attributes:
        drift_s: by how much more the wall clock moved on than the monotonic one, in a moment.
        synchronized: whether somebody keeps it; None where nobody says.
        zone: its name now.
        now: the local time, with its zone.
        changes_at: when the zone's offset changes next, None where it does not in a year.
        year_is_sane: whether the year can be true at all.
    """

    drift_s: float
    synchronized: bool | None
    zone: str
    now: datetime
    changes_at: datetime | None
    year_is_sane: bool = True


def gather_clock(pause: Callable[[float], None] = time.sleep) -> Clock:
    """Watch both clocks for a moment, and ask who keeps them."""
    wall, monotonic = time.time(), time.monotonic()
    pause(_MOMENT_S)
    drift_s = (time.time() - wall) - (time.monotonic() - monotonic)
    now = datetime.now().astimezone()
    return Clock(
        drift_s=drift_s,
        synchronized=_synchronized(),
        zone=now.tzname() or "unknown",
        now=now,
        changes_at=next_change(now, None),
        year_is_sane=now.year >= 2025,
    )


def clock_results(clock: Clock) -> Iterator[Result]:
    """Judge the clock and the time zone."""
    if not clock.year_is_sane:
        yield Result("clock", "fail", f"it says {clock.now:%Y-%m-%d}", "set it")
    elif abs(clock.drift_s) > _UNEVEN_S:
        words = f"it moved {1000 * clock.drift_s:+.0f} ms against the monotonic clock in a moment"
        hint = "somebody sets it; durations are safe, but --until is the wall clock's"
        yield Result("clock", "warn", words, hint)
    elif clock.synchronized is False:
        hint = "turn on NTP: leases and --until go by this clock"
        yield Result("clock", "warn", "nobody keeps it (NTP is off)", hint)
    else:
        kept = "" if clock.synchronized is None else ", kept by NTP"
        yield Result("clock", "ok", f"even{kept}")
    yield _zone(clock)


def next_change(now: datetime, zone: tzinfo | None) -> datetime | None:
    """Return the first moment, to the minute, at which the offset from UTC is another.

    Args:
        now: with a zone.
        zone: to look into; None is the machine's own.
    """
    offset = now.astimezone(zone).utcoffset()
    # Sums of times with a zone are those of its wall clock.
    day = now.astimezone(UTC)
    for _ in range(_HORIZON_DAYS):
        later = day + timedelta(days=1)
        if later.astimezone(zone).utcoffset() != offset:
            return _to_the_minute(day, later, zone)
        day = later
    return None


def _to_the_minute(low: datetime, high: datetime, zone: tzinfo | None) -> datetime:
    offset = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    rounded = (high + timedelta(seconds=30)).replace(second=0, microsecond=0)
    return rounded.astimezone(zone)


def _zone(clock: Clock) -> Result:
    words = f"{clock.zone}, UTC{clock.now:%z}"
    if clock.changes_at is None:
        return Result("time zone", "ok", f"{words}, which does not change")
    words = f"{words}, changes on {clock.changes_at:%Y-%m-%d at %H:%M}"
    if clock.changes_at - clock.now < _SOON:
        hint = "--until means the local clock then; --timeout is not affected"
        return Result("time zone", "warn", words, hint)
    return Result("time zone", "ok", words)


def _synchronized() -> bool | None:
    """Return what systemd says, else the kernel; None where neither may be asked."""
    if SYNCHRONIZED.exists():
        return True
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "adjtimex"):
        return None
    # All zero, its mode too: nothing is set.
    state = library.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else state != _UNSYNCHRONIZED
