from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.study.eta import PARTS, Pace, pace
from tests.autotune.study.records import record

TIMINGS = {"start_s": 20.0, "warmup_s": 10.0, "replay_s": 60.0, "stop_s": 2.0}


def test_before_any_trial_windows_and_warm_ups_count() -> None:
    """An engine that was just started has a pass of 30 s, and one more; a live trial has one."""
    least = pace([record(0, state="failed")], window_s=600.0, warmup_s=10.0)
    seconds = {"start": 0.0, "warmup": 40.0, "replay": 600.0, "stop": 0.0}
    assert least == Pace(seconds, False, {"warmup": 10.0})
    assert least.left_s(3) == 3 * 640.0
    assert least.left_s(3, live_later=2) == 640.0 + 2 * 610.0


def test_without_a_warm_up_there_is_none() -> None:
    assert pace([], window_s=600.0, warmup_s=0.0).left_s(2, live_later=1) == 1200.0


def test_a_warm_up_is_no_longer_than_its_window() -> None:
    assert pace([], window_s=4.0, warmup_s=10.0).seconds["warmup"] == 2 * 4.0


def test_the_mean_of_each_part_counts() -> None:
    slow = {**TIMINGS, "start_s": 80.0, "replay_s": 100.0}
    rows = [record(0, timings=TIMINGS), record(1, state="failed"), record(2, timings=slow)]
    measured = pace(rows, window_s=60.0, warmup_s=10.0)
    assert measured.measured
    assert measured.seconds == {"start": 50.0, "warmup": 10.0, "replay": 80.0, "stop": 2.0}


def test_a_part_without_a_time_leaves_the_others_alone() -> None:
    rows = [record(0, timings={**TIMINGS, "stop_s": None}), record(1, timings=TIMINGS)]
    assert pace(rows, window_s=60.0, warmup_s=10.0).seconds["stop"] == 2.0
    alone = pace(rows[:1], window_s=60.0, warmup_s=10.0)
    assert (alone.seconds["stop"], alone.seconds["start"]) == (0.0, 20.0)


@pytest.mark.parametrize(
    ("part", "elapsed_s", "left_s"),
    [
        ("start", 0.0, 92.0),
        ("start", 5.0, 87.0),
        ("start", 500.0, 72.0),
        ("warmup", 4.0, 68.0),
        ("replay", 30.0, 32.0),
        ("stop", 1.0, 1.0),
        ("stop", 9.0, 0.0),
    ],
)
def test_the_running_trial_counts_from_where_it_is(
    part: str, elapsed_s: float, left_s: float
) -> None:
    measured = pace([record(0, timings=TIMINGS)], window_s=60.0, warmup_s=10.0)
    assert measured.left_s(1, part=part, elapsed_s=elapsed_s) == left_s
    assert measured.left_s(3, part=part, elapsed_s=elapsed_s) == left_s + 2 * 92.0


def test_nothing_is_left_of_a_finished_study() -> None:
    assert pace([record(0, timings=TIMINGS)], window_s=60.0, warmup_s=10.0).left_s(0) == 0.0


@given(
    seconds=st.lists(st.floats(0, 1e6), min_size=4, max_size=4),
    trials=st.integers(1, 100),
    moments=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
)
def test_what_is_left_never_grows_while_a_trial_runs(
    seconds: list[float], trials: int, moments: tuple[float, float]
) -> None:
    expected = Pace(dict(zip(PARTS, seconds, strict=True)), measured=True)
    sooner, later = sorted(moments)
    course = [
        expected.left_s(trials, part=part, elapsed_s=elapsed_s)
        for part in PARTS
        for elapsed_s in (sooner, later)
    ]
    assert all(
        after <= before + 1e-6 * (1 + before)
        for before, after in zip(course[::2], course[1::2], strict=True)
    )
    assert all(left_s >= (trials - 1) * sum(seconds) * 0.999 for left_s in course)


LIVE = {"start_s": None, "warmup_s": 3.0, "replay_s": 62.0, "stop_s": None}


def test_live_trials_have_a_pace_of_their_own() -> None:
    first = {**LIVE, "start_s": 30.0}
    rows = [
        record(0, timings=TIMINGS),
        record(1, timings=first, fidelity="live"),
        record(2, timings=LIVE, fidelity="live"),
    ]
    measured = pace(rows, window_s=60.0, warmup_s=10.0)
    assert measured.seconds == {"start": 20.0, "warmup": 10.0, "replay": 60.0, "stop": 2.0}
    assert measured.live_seconds == {"start": 15.0, "warmup": 3.0, "replay": 62.0, "stop": 0.0}
    assert measured.left_s(5, live_later=3) == 2 * 92.0 + 3 * 80.0
    assert measured.left_s(3, part="replay", elapsed_s=2.0, live=True, live_later=1) == 232.0


def test_before_any_live_trial_it_saves_start_and_stop_and_the_first_pass() -> None:
    rows = [record(0, timings={**TIMINGS, "warmup_s": 45.0})]
    measured = pace(rows, window_s=60.0, warmup_s=10.0)
    assert measured.left_s(2, live=True, live_later=1) == 2 * 70.0
