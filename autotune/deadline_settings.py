"""The settings of when a run is over."""

from __future__ import annotations

from datetime import date

from pydantic import BaseModel, field_validator

from autotune.moments import parse_moment, seconds_in

_TIMEOUTS = "90m or 8h"
_MOST_SECONDS = 366 * 86_400.0
_MINUTES_A_DAY = 24 * 60


class DeadlineSettings(BaseModel):
    """Part of ``TuneSettings``; none of it belongs to a study's fingerprint.

    Attributes:
        timeout: how long a run may take from its start, ``8h``; None for as long as it takes.
        until: local time by which a run is over, ``07:00`` for the next such moment or
            ``2026-12-01T07:00``; None for none. Of both the earlier counts.
    """

    timeout: str | None = None
    until: str | None = None

    @field_validator("timeout", mode="before")
    @classmethod
    def _a_duration(cls, given: object) -> str | None:
        if given is None:
            return None
        text = "" if isinstance(given, bool) else str(given).strip()
        seconds = seconds_in(text)
        if seconds is None or not 0 < seconds <= _MOST_SECONDS:
            raise ValueError(f"must be a length of time, at most a year, such as {_TIMEOUTS}")
        return text

    @field_validator("until", mode="before")
    @classmethod
    def _a_moment(cls, given: object) -> str | None:
        if given is None:
            return None
        if isinstance(given, int) and not isinstance(given, bool) and given < _MINUTES_A_DAY:
            # YAML reads 22:30 as a number of base 60, and 07:00 as a text.
            given = f"{given // 60:02}:{given % 60:02}"
        text = given.isoformat() if isinstance(given, date) else str(given).strip()
        parse_moment(text)
        return text
