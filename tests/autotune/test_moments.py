from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.moments import next_moment, parse_moment, seconds_in

BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
"""By its rules alone, so that no table of zones is needed."""


@pytest.fixture(scope="module", autouse=True)
def berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", BERLIN)
        time.tzset()
        yield
    time.tzset()


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("wanted", "now", "then"),
    [
        ("07:00", "2026-11-30T18:00", "2026-12-01T06:00"),
        ("7:00", "2026-12-01T05:59", "2026-12-01T06:00"),
        # Not the moment itself, but the next.
        ("07:00", "2026-12-01T06:00", "2026-12-02T06:00"),
        # The night is an hour shorter in spring, and one longer in autumn.
        ("07:00", "2026-03-28T18:00", "2026-03-29T05:00"),
        ("07:00", "2026-10-24T17:00", "2026-10-25T06:00"),
        # Skipped: it has come when clocks jump from 02:00 to 03:00.
        ("02:30", "2026-03-28T18:00", "2026-03-29T01:00"),
        # Shown twice: the first that is still ahead.
        ("02:30", "2026-10-24T18:00", "2026-10-25T00:30"),
        ("02:30", "2026-10-25T00:45", "2026-10-25T01:30"),
        ("02:30", "2026-10-25T01:30", "2026-10-26T01:30"),
        ("2026-12-01T07:00", "2026-11-30T18:00", "2026-12-01T06:00"),
        ("2026-12-01T07:00+00:00", "2026-11-30T18:00", "2026-12-01T07:00"),
    ],
)
def test_the_next_such_moment_by_the_local_clock(wanted: str, now: str, then: str) -> None:
    assert next_moment(parse_moment(wanted), utc(now)) == utc(then)


def test_a_date_that_is_over_has_no_next() -> None:
    assert next_moment(parse_moment("2026-11-30T07:00"), utc("2026-11-30T18:00")) is None


@pytest.mark.parametrize("text", ["", "7", "24:00", "07:60", "2026-12-01", "tomorrow", "07:00:"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time of day"):
        parse_moment(text)


@given(
    now=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
    wanted=st.times().map(lambda each: each.replace(second=0, microsecond=0)),
)
def test_it_comes_within_a_day_and_an_hour(now: datetime, wanted: time_of_day) -> None:
    now_s = now.replace(tzinfo=UTC).timestamp()
    found = next_moment(wanted, now_s)
    assert found is not None
    assert 0 < found - now_s <= timedelta(hours=25).total_seconds()
    shown = datetime.fromtimestamp(found).time()
    assert shown == wanted or shown == time_of_day(3, 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("600", 600.0), ("90s", 90.0), ("1.5m", 90.0), ("8h", 28800.0), ("8 h", None), ("", None)],
)
def test_lengths_of_time(text: str, seconds: float | None) -> None:
    assert seconds_in(text) == seconds
