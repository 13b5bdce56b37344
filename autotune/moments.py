"""Lengths of time and moments as people write them: ``8h``, and ``07:00`` by the local clock."""

from __future__ import annotations

import bisect
import math
import re
from datetime import date, datetime, time, timedelta

_SECONDS_PER_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)", re.ASCII)

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)
_DAYS = 3
"""Within which every time of day comes, also where clocks change."""

EXAMPLES = "07:00 or 2026-12-01T07:00"


def seconds_in(text: str) -> float | None:
    """Return the seconds of ``600``, ``90s``, ``10m`` or ``2h``, None if it is none of these."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    seconds = float(found[1]) * _SECONDS_PER_UNIT[found[2]]
    return seconds if math.isfinite(seconds) else None


def parse_moment(text: str) -> time | datetime:
    """Read a time of day, or a date with one; with an offset from UTC or in local time.

    Raises:
        ValueError: it is neither; the message goes behind the name of an option.
    """
    found = _CLOCK.fullmatch(text.strip())
    try:
        if found is not None:
            return time(int(found[1]), int(found[2]))
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    # A date alone would be taken for its first minute.
    if moment is None or ":" not in text:
        raise ValueError(f"must be a time of day, or a date with one, such as {EXAMPLES}")
    return moment


def next_moment(wanted: time | datetime, now_s: float) -> float | None:
    """Return the first moment after now at which the local clock shows what is wanted.

    A time of day that clocks skip in that night has come when they skip it; one that they show
    twice has come at the first of the two that is still ahead.

    Args:
        wanted: see ``parse_moment``.
        now_s: seconds since 1970, as the result.

    Returns:
        None for a date that is over.
    """
    if isinstance(wanted, datetime):
        moments = [wanted.timestamp()] if wanted.tzinfo is not None else _showings(wanted)
        return next((each for each in moments if each > now_s), None)
    today = date.fromtimestamp(now_s)
    days = (today + timedelta(days=ahead) for ahead in range(_DAYS))
    moments = [each for day in days for each in _showings(datetime.combine(day, wanted))]
    return next(each for each in moments if each > now_s)


def _showings(wall: datetime) -> list[float]:
    """Return when the local clock shows this: once, twice, or where it skips it."""
    first, second = (wall.replace(fold=fold).timestamp() for fold in (0, 1))
    if first <= second:
        return sorted({first, second})
    # Skipped: the two readings lie on either side of the change.
    seconds = range(int(second), int(first) + 1)
    at = bisect.bisect_left(seconds, wall, key=datetime.fromtimestamp)
    return [float(seconds[at])]
