from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.study.doctor.results import Result, State, run_checks, worst


def breaks() -> Iterator[Result]:
    yield Result("first", "ok", "fine")
    raise ValueError("no such\nthing")


def test_a_check_that_fails_itself_is_a_result_and_the_others_go_on() -> None:
    checks = {"one": breaks, "two": lambda: [Result("two", "ok", "fine")]}
    assert list(run_checks(checks)) == [
        Result("first", "ok", "fine"),
        Result("one", "fail", "could not be checked: ValueError: no such thing"),
        Result("two", "ok", "fine"),
    ]


@pytest.mark.parametrize(
    ("states", "found"),
    [((), "ok"), (("ok", "warn"), "warn"), (("fail", "warn", "ok"), "fail")],
)
def test_the_worst_counts(states: tuple[State, ...], found: State) -> None:
    assert worst(Result("a", state, "words") for state in states) == found
