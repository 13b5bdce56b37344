from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from autotune.study.doctor.clocks import Clock, clock_results, gather_clock, next_change

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 10, 1, 19, 0, tzinfo=BERLIN)
CHANGE = datetime(2026, 10, 25, 2, 0, tzinfo=BERLIN, fold=1)
GOOD = Clock(drift_s=0.0, synchronized=True, zone="CEST", now=NOW, changes_at=CHANGE)


@pytest.mark.parametrize(
    ("changes", "name", "state"),
    [
        ({}, "clock", "ok"),
        ({"synchronized": None}, "clock", "ok"),
        ({"synchronized": False}, "clock", "warn"),
        ({"drift_s": -0.5}, "clock", "warn"),
        ({"year_is_sane": False}, "clock", "fail"),
        ({"changes_at": None}, "time zone", "ok"),
        ({"now": datetime(2026, 10, 24, 19, 0, tzinfo=BERLIN)}, "time zone", "warn"),
    ],
)
def test_the_clock_is_judged(changes: dict[str, Any], name: str, state: str) -> None:
    found = {each.name: each for each in clock_results(replace(GOOD, **changes))}
    assert found[name].state == state


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (datetime(2026, 10, 1, 19, 7, 3, tzinfo=BERLIN), "2026-10-25T02:00:00+01:00"),
        (datetime(2026, 10, 25, 12, 0, tzinfo=BERLIN), "2027-03-28T03:00:00+02:00"),
    ],
)
def test_the_next_change_of_a_zone_is_found(now: datetime, expected: str) -> None:
    found = next_change(now, BERLIN)
    assert found is not None
    assert found.isoformat() == expected


def test_a_zone_without_summer_does_not_change() -> None:
    assert next_change(datetime(2026, 10, 1, tzinfo=UTC), UTC) is None


def test_this_clock_can_be_watched() -> None:
    found = gather_clock(pause=lambda _: None)
    assert found.year_is_sane
    assert abs(found.drift_s) < 60
