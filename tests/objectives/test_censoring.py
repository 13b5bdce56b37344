from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.censoring import Censored, Lost, censored, lower_bounds, unfinished
from tests.objectives.test_abort import courses
from tests.objectives.unfinished import CLASSES, Course, latencies, samples

LOST = Lost("ttft_p95", 500.0, 750.0)

# Waits, runs, has failed, is done, is not due yet.
ONE_OF_EACH = [
    Course(0.0, [(9.0, 1)], 1),
    Course(0.0, [(1.0, 1), (2.0, 2), (9.0, 2)], 5, prompt_tokens=5000),
    Course(0.5, [(1.0, 1)], 3, fails_at_s=2.5),
    Course(0.5, [(1.0, 1), (2.0, 1)], 2),
    Course(5.0, [(9.0, 1)], 1),
]


def test_failed_and_finished_requests_are_not_unfinished() -> None:
    assert unfinished(samples(ONE_OF_EACH, 3.0)).tolist() == [True, True, False, False, True]
    assert not unfinished(samples(ONE_OF_EACH)).any()


def test_what_a_cut_leaves_out_is_counted() -> None:
    found = censored(samples(ONE_OF_EACH, 3.0), lost=LOST, cut_s=3.0)
    assert found == Censored(LOST, cut_s=3.0, requests=5, sent=4, ended=2)
    assert found.sent_share == 0.8


def test_nothing_is_censored_once_every_request_has_ended() -> None:
    assert censored(samples(ONE_OF_EACH), lost=LOST, cut_s=20.0) is None


def test_every_request_of_the_window_counts_in_the_bounds() -> None:
    found = lower_bounds(
        samples(ONE_OF_EACH[:2] + ONE_OF_EACH[3:], 3.0), cut_s=3.0, classes=CLASSES
    )
    assert found["ttft_mean"] == pytest.approx(1000 * (3.0 + 1.0 + 0.5 + 0.0) / 4)
    assert found["e2e_mean"] == pytest.approx(1000 * (3.0 + 3.0 + 1.5 + 0.0) / 4)
    # The running one: 2 s for 4 steps; gaps of 1 s and, still open, 1 s, and one may come.
    assert found["tpot_mean"] == pytest.approx(1000 * (0.5 + 1.0) / 2)
    assert found["itl_mean"] == pytest.approx(1000 * (1.0 + 1.0 + 0.0 + 1.0) / 4)
    assert found["itl_max@long"] == 1000.0
    assert found["tpot_max@long"] == 500.0
    assert found["itl_p50@short"] == 1000.0


def test_a_failed_request_is_infinitely_late_in_the_bounds() -> None:
    found = lower_bounds(samples(ONE_OF_EACH, 3.0), cut_s=3.0, classes=())
    assert {found[f"{metric}_mean"] for metric in ("ttft", "tpot", "itl", "e2e")} == {math.inf}


@given(courses, st.integers(0, 6000))
@settings(max_examples=60)
def test_bounds_are_never_above_what_the_whole_replay_has(
    replay: list[Course], at_ms: int
) -> None:
    whole = samples(replay)
    found = lower_bounds(samples(replay, at_ms / 1000), cut_s=at_ms / 1000, classes=CLASSES)
    values = latencies(whole)
    assert found.keys() == values.keys()
    for key, value in values.items():
        bound = found[key]
        assert bound is None or value is None or bound <= value * (1 + 1e-9)


@given(courses)
@settings(max_examples=30)
def test_bounds_of_a_whole_replay_are_its_values(replay: list[Course]) -> None:
    whole = samples(replay)
    assert lower_bounds(whole, cut_s=100.0, classes=CLASSES) == latencies(whole)
