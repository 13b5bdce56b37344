from __future__ import annotations

import pytest

from autotune.traffic.formats.base import BadLine
from autotune.traffic.formats.clock import Clock, clock_time, stamp_ns

MOMENT_NS = 1_700_000_000_250_000_000


@pytest.mark.parametrize(
    ("value", "taken_for"),
    [
        (1_700_000_000.25, "s since 1970"),
        ("1700000000.25", "s since 1970"),
        (1_700_000_000_250, "ms since 1970"),
        ("1700000000250", "ms since 1970"),
        (1_700_000_000_250_000, "µs since 1970"),
        (MOMENT_NS, "ns since 1970"),
        (str(MOMENT_NS), "ns since 1970"),
        ("2023-11-14T22:13:20.25Z", "ISO 8601 with its zone"),
        ("2023-11-14T23:13:20.25+01:00", "ISO 8601 with its zone"),
        ("2023-11-14 17:13:20.250000-05", "ISO 8601 with its zone"),
        ("2023-11-14 22:13:20,25 UTC", "ISO 8601 with its zone"),
        ("2023-11-14 22:13:20.250", "ISO 8601 without a zone, so UTC"),
    ],
)
def test_a_moment_is_recognised_however_it_is_written(value: object, taken_for: str) -> None:
    clock = Clock()
    assert clock.ns("t", value) == MOMENT_NS
    assert clock.is_absolute()
    assert clock.remark() == f"Times were read as {taken_for}; they count from the first request."


def test_small_numbers_count_from_the_files_own_zero_where_that_is_allowed() -> None:
    clock = Clock(from_zero=True)
    assert clock.ns("t", 61.114) == 61_114_000_000
    assert not clock.is_absolute()
    with pytest.raises(BadLine, match="t: is no time since 1970"):
        Clock().ns("t", 61.114)


def test_several_kinds_are_told_with_their_numbers() -> None:
    clock = Clock()
    for value in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00"):
        clock.ns("t", value)
    assert "with its zone (2) and ISO 8601 without a zone, so UTC (1)" in clock.remark()


@pytest.mark.parametrize(
    "value",
    ["yesterday", "", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z", -5, float("nan"), 1e300,
     float("inf"), "9" * 40, True, None, [1], {}],
)  # fmt: skip
def test_what_is_no_time_is_refused_unquoted(value: object) -> None:
    with pytest.raises(BadLine) as caught:
        Clock().ns("startTime", value)
    assert caught.value.reason == "startTime: is no time"
    assert "ISO 8601" in caught.value.hint


def test_nanoseconds_survive() -> None:
    assert stamp_ns("2023-11-16 18:15:46.123456789") == (1_700_158_546_123_456_789, False)
    assert clock_time(MOMENT_NS) == "2023-11-14T22:13:20.250000+00:00"
