"""Times as logs write them: texts with or without a zone, and numbers in four units."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal

from autotune.traffic.formats.base import BadLine

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

_STAMP = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](?P<digits>\d{1,9}))?"
    r" ?(?P<offset>Z|UTC|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"\d{1,30}(?:\.\d{1,30})?(?:[eE]\+?\d\d?)?", re.ASCII)
# So far from both ends of the calendar that neither an offset nor a window leaves it.
_YEARS = range(1970, 9998)

# A clock since 1970 gives at least so much: in seconds from 1973 on, and so in every unit.
_UNITS = ((10**17, "ns", 1), (10**14, "µs", 10**3), (10**11, "ms", 10**6), (10**8, "s", NS_PER_S))
_LARGEST = 10**19

_HINT = (
    "a time is ISO 8601 as in 2026-11-30T08:15:00.25+01:00, or a number of s, ms, µs or ns since "
    "1970"
)


class Clock:
    """Reads the times of one file, and remembers how they were written.

    Args:
        from_zero: numbers too small for a time since 1970 are seconds from some zero.
    """

    def __init__(self, *, from_zero: bool = False) -> None:
        self._from_zero = from_zero
        self._kinds: Counter[str] = Counter()

    def ns(self, name: str, value: object) -> int:
        """Return nanoseconds since 1970, or since the zero of the file.

        Raises:
            BadLine: it is no time; nothing of it is quoted.
        """
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            return self._of_text(name, value.strip())
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise BadLine(f"{name}: is no time", hint=_HINT)
        return self._of_number(name, value)

    def is_absolute(self) -> bool:
        """Say whether all times were read as clock time."""
        return bool(self._kinds) and _ZERO not in self._kinds

    def remark(self) -> str:
        """Return in a sentence what times were taken for."""
        kinds = [
            kind if len(self._kinds) == 1 else f"{kind} ({count:,})"
            for kind, count in self._kinds.most_common()
        ]
        return f"Times were read as {' and '.join(kinds)}; they count from the first request."

    def _of_text(self, name: str, text: str) -> int:
        try:
            moment_ns, zone = stamp_ns(text)
        except ValueError as error:
            raise BadLine(f"{name}: is no time", hint=_HINT) from error
        self._kinds["ISO 8601 with its zone" if zone else "ISO 8601 without a zone, so UTC"] += 1
        return moment_ns

    def _of_number(self, name: str, value: float | str) -> int:
        number = Decimal(str(value))
        if not (number.is_finite() and 0 <= number < _LARGEST):
            raise BadLine(f"{name}: is no time", hint=_HINT)
        for least, unit, scale in _UNITS:
            if number >= least:
                self._kinds[f"{unit} since 1970"] += 1
                return int(number * scale)
        if not self._from_zero:
            raise BadLine(f"{name}: is no time since 1970", hint=_HINT)
        self._kinds[_ZERO] += 1
        return int(number * NS_PER_S)


_ZERO = "seconds from the file's own zero"


def stamp_ns(text: str) -> tuple[int, bool]:
    """Return nanoseconds since 1970 of an ISO 8601 time, and whether it names its zone.

    One without a zone is read as UTC.

    Raises:
        ValueError: it is no time.
    """
    found = _STAMP.fullmatch(text)
    if found is None:
        raise ValueError("is no time")
    second, digits, offset = found.group("second", "digits", "offset")
    zone = "Z" if offset in (None, "UTC") else offset
    moment = datetime.fromisoformat(second + zone)
    if moment.year not in _YEARS:
        raise ValueError(f"is not of the years {_YEARS[0]} to {_YEARS[-1]}")
    return int(moment.timestamp()) * NS_PER_S + int((digits or "").ljust(9, "0")), bool(offset)


def clock_time(moment_ns: int) -> str:
    """Return nanoseconds since 1970 as ISO 8601 in UTC."""
    seconds, rest_ns = divmod(moment_ns, NS_PER_S)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // 1000).isoformat()
