from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.budget import is_feasible
from objectives.censoring import Lost
from objectives.errors import ObjectiveError
from objectives.limits import METRICS, Budget, Limit, metric_key, parse_budget
from objectives.measurement import measure
from objectives.statistics import AGGREGATES
from tests.objectives.unfinished import CLASSES, Course, Watched, latencies, samples

INF = math.inf
LOOKS_S = range(1, 120)
ALL_KEYS = [
    (metric, name, class_name)
    for metric in METRICS
    for name in AGGREGATES
    for class_name in (None, "short", "long")
]

# Limits beside what they limit, which is where a proof goes wrong if it does.
FACTORS = (0.05, 0.5, 0.9, 1 - 1e-8, 1 - 1e-12, 1.0, 1 + 1e-12, 1.1, 3.0)


@st.composite
def course(draw: st.DrawFn) -> Course:
    """Times in whole ms, so that they often meet; failures at any point; merged deliveries."""
    at_ms = draw(st.integers(0, 3000))
    parts = draw(
        st.lists(st.tuples(st.integers(0, 900), st.integers(1, 3)), min_size=1, max_size=5)
    )
    ends_ms = at_ms + np.cumsum([delay_ms for delay_ms, _ in parts])
    deliveries = [(ms / 1000, n) for ms, (_, n) in zip(ends_ms.tolist(), parts, strict=True)]
    kept = draw(st.none() | st.integers(0, len(parts))) if draw(st.integers(0, 9)) == 0 else None
    known = deliveries[:kept]
    until_s = known[-1][0] if known else at_ms / 1000
    return Course(
        scheduled_s=at_ms / 1000,
        deliveries=known,
        expected=sum(tokens for _, tokens in parts),
        fails_at_s=None if kept is None else until_s + draw(st.integers(0, 500)) / 1000,
        prompt_tokens=draw(st.sampled_from([100, 5000])),
    )


courses = st.lists(course(), min_size=1, max_size=12)
instants_s = st.lists(st.integers(0, 6000), min_size=1, max_size=6).map(
    lambda times_ms: [ms / 1000 for ms in sorted(times_ms)]
)
keys = st.sampled_from(ALL_KEYS)


@st.composite
def budget_for(draw: st.DrawFn, replay: Sequence[Course]) -> Budget:
    chosen = draw(st.lists(keys, min_size=1, max_size=4, unique=True))
    values = latencies(samples(replay), [metric_key(*key) for key in chosen])
    limits = []
    for metric, name, class_name in chosen:
        value = values[metric_key(metric, name, class_name)]
        near_ms = value if value is not None and 0 < value < INF else 300.0
        limit_ms = near_ms * draw(st.sampled_from(FACTORS))
        limits.append(Limit(metric, name, class_name, limit_ms=limit_ms))
    return Budget(tuple(limits))


def keys_of(budget: Budget) -> set[str]:
    return {limit.key for limit in budget.limits}


@given(courses, instants_s, st.data())
@settings(max_examples=120)
def test_what_is_lost_at_any_instant_stays_lost_and_is_infeasible(
    replay: list[Course], at_s: list[float], data: st.DataObject
) -> None:
    budget = data.draw(budget_for(replay))
    watched = Watched(replay, budget)
    found = [watched.lost(now_s) for now_s in at_s]
    lost = [each for each in found if each is not None]
    assert found == [None] * (len(found) - len(lost)) + lost
    if lost:
        whole = samples(replay)
        values = latencies(whole, keys_of(budget))
        assert not is_feasible(budget, values, int(whole.lost.sum()))
        for each in lost:
            value = values[each.key]
            assert value is not None
            assert each.limit_ms < each.at_least_ms <= value * (1 + 1e-9)


@given(courses, instants_s, st.data())
@settings(max_examples=50)
def test_a_watch_from_the_start_knows_what_one_from_now_on_knows(
    replay: list[Course], at_s: list[float], data: st.DataObject
) -> None:
    budget = data.draw(budget_for(replay))
    watched = Watched(replay, budget)
    for now_s in at_s:
        early, late = watched.lost(now_s), Watched(replay, budget).lost(now_s)
        if early is None or late is None:
            assert early is late
        else:
            assert (early.key, early.limit_ms) == (late.key, late.limit_ms)
            assert early.at_least_ms == pytest.approx(late.at_least_ms, rel=1e-12)


@given(courses, st.data())
@settings(max_examples=60)
def test_of_a_replay_that_is_over_nothing_is_left_open(
    replay: list[Course], data: st.DataObject
) -> None:
    """Except that for gaps the proof counts, and does not interpolate."""
    budget = data.draw(budget_for(replay))
    values = latencies(samples(replay), keys_of(budget))
    over = [
        limit.key
        for limit in budget.limits
        if (values[limit.key] or 0.0) > (limit.limit_ms or 0.0) * (1 + 1e-9)
    ]
    lost = Watched(replay, budget).lost(max(each.end_s for each in replay))
    exact = [key for key in over if not key.startswith("itl")]
    assert (lost.key if lost else None) in over or not exact
    assert lost is None or lost.key in over


@given(courses, st.integers(0, 6000), st.data())
@settings(max_examples=15)
def test_the_whole_measurement_agrees(
    replay: list[Course], at_ms: int, data: st.DataObject
) -> None:
    budget = data.draw(budget_for(replay))
    if Watched(replay, budget).lost(at_ms / 1000) is not None:
        found = measure(samples(replay), classes=CLASSES, budget=budget, duration_s=10.0)
        assert not is_feasible(budget, found.metrics, found.failed_requests)


def lost_of(replay: Sequence[Course], budget: str, *, at_s: float) -> Lost | None:
    return Watched(replay, parse_budget(budget)).lost(at_s)


def never_answered(
    *scheduled_s: float, expected: int = 1, prompt_tokens: int = 100
) -> list[Course]:
    return [
        Course(at_s, [(1e6, expected)], expected, prompt_tokens=prompt_tokens)
        for at_s in scheduled_s
    ]


def test_a_wait_as_long_as_the_limit_is_no_loss_yet() -> None:
    waiting = never_answered(1.0)
    assert lost_of(waiting, "ttft_max:500", at_s=1.5) is None
    assert lost_of(waiting, "ttft_max:500", at_s=1.75) == Lost("ttft_max", 500.0, 750.0)


def test_a_request_that_is_not_due_has_waited_for_nothing() -> None:
    assert lost_of(never_answered(9.0), "ttft_max:500 e2e_max:500", at_s=5.0) is None


def test_a_percentile_allows_its_share_of_the_whole_window() -> None:
    """Of 101 values the p95 is the 96th in order, so that five may be late, and six may not."""
    due, to_come = [0.0] * 6, [50.0] * 95
    assert lost_of(never_answered(*due, *to_come), "ttft_p95:500", at_s=0.75) == Lost(
        "ttft_p95", 500.0, 750.0
    )
    assert lost_of(never_answered(*due[1:], *to_come, 50.0), "ttft_p95:500", at_s=0.75) is None


def test_the_mean_is_lost_by_what_the_sum_has_reached() -> None:
    replay = never_answered(0.0, 50.0, 50.0, 50.0)
    assert lost_of(replay, "ttft_mean:500", at_s=2.0) is None
    assert lost_of(replay, "ttft_mean:500", at_s=2.5) == Lost("ttft_mean", 500.0, 625.0)


def test_the_limit_of_a_class_asks_for_its_requests_alone() -> None:
    replay = never_answered(0.0, prompt_tokens=5000) + never_answered(*[50.0] * 99)
    assert lost_of(replay, "ttft_p95:500 ttft_p95@short:500", at_s=1.0) is None
    lost = lost_of(replay, "ttft_p95:500 ttft_p95@long:500", at_s=1.0)
    assert lost == Lost("ttft_p95@long", 500.0, 1000.0)


def test_a_running_request_takes_at_least_until_now_for_its_tokens() -> None:
    replay = [Course(0.0, [(1.0, 1), (1.25, 1), (1e6, 3)], 5)]
    assert lost_of(replay, "tpot_max:500", at_s=3.0) is None
    assert lost_of(replay, "tpot_max:500", at_s=4.0) == Lost("tpot_max", 500.0, 750.0)
    assert lost_of(replay, "e2e_max:3000", at_s=4.0) == Lost("e2e_max", 3000.0, 4000.0)


def test_a_reply_of_one_token_has_no_time_per_token_and_no_gap() -> None:
    replay = [Course(0.0, [(1.0, 1)], 1), *never_answered(0.0)]
    assert lost_of(replay, "tpot_max:1 itl_max:1 itl_p50:1 itl_mean:1", at_s=100.0) is None


def test_the_open_gap_counts() -> None:
    replay = [Course(0.0, [(1.0, 1), (1.25, 1), (1e6, 1)], 3)]
    assert lost_of(replay, "itl_max:500", at_s=1.75) is None
    assert lost_of(replay, "itl_max:500", at_s=2.0) == Lost("itl_max", 500.0, 750.0)
    assert lost_of(replay, "itl_mean:400", at_s=2.0) == Lost("itl_mean", 400.0, 500.0)


def test_tokens_that_can_still_come_make_room_for_long_gaps() -> None:
    """Three gaps, all too long, are 1 % of 300 possible ones, or all of three."""
    slow = Course(0.0, [(0.0, 1), (1.0, 1), (2.0, 1), (3.0, 1)], 4)
    others = never_answered(0.0, expected=298)
    assert lost_of([slow, *others], "itl_p99:500", at_s=3.0) is None
    merged = [Course(0.0, [(3.0, 298)], 298)]
    assert lost_of([slow, *merged], "itl_p99:500", at_s=2.75) is None
    assert lost_of([slow, *merged], "itl_p99:500", at_s=3.0) == Lost("itl_p99", 500.0, 1000.0)


@pytest.mark.parametrize("metric", METRICS)
def test_failures_are_infinitely_late(metric: str) -> None:
    replay = [Course(0.0, (), 5, fails_at_s=1.0), *never_answered(*[50.0] * 9, expected=5)]
    assert lost_of(replay, f"{metric}_max:500", at_s=0.25) is None
    assert lost_of(replay, f"{metric}_max:500", at_s=1.0) == Lost(f"{metric}_max", 500.0, INF)
    assert lost_of(replay, f"{metric}_mean:500", at_s=1.0) == Lost(f"{metric}_mean", 500.0, INF)
    assert lost_of(replay, f"{metric}_p50:500", at_s=1.0) is None


def test_every_gap_is_counted_once_however_often_one_looks() -> None:
    replay = [Course(0.0, [(1.0, 1), (1.5, 1), (2.0, 1), (2.25, 1), (1e6, 1)], 5)]
    watched = Watched(replay, parse_budget("itl_mean:700"))
    assert [watched.lost(at_s) for at_s in (0.5, 1.0, 1.5, 2.0, 2.25, 3.5)] == [None] * 6
    assert watched.lost(4.0) == Lost("itl_mean", 700.0, 750.0)


def test_between_two_gaps_nothing_is_interpolated_before_it_is_certain() -> None:
    """The median of 125 ms and 10 s is above 1 s, but not the lower of the two."""
    replay = [Course(0.0, [(0.0, 1), (0.125, 1), (10.125, 1)], 3)]
    assert lost_of(replay, "itl_p50:1000", at_s=11.0) is None
    assert lost_of(replay, "itl_p50:100", at_s=11.0) == Lost("itl_p50", 100.0, 5062.5)


def test_the_first_lost_limit_of_the_budget_is_named() -> None:
    lost = lost_of(never_answered(0.0), "tpot_p95:40 e2e_p95:900 ttft_p95:500", at_s=1.0)
    assert lost == Lost("e2e_p95", 900.0, 1000.0)


def test_nothing_is_lost_without_limits_or_requests() -> None:
    assert lost_of(never_answered(0.0), "", at_s=1e5) is None
    assert lost_of([], "ttft_p95:1 tpot_mean:1 itl_p99:1 itl_p99@long:1", at_s=1e5) is None


def test_a_class_without_requests_proves_nothing() -> None:
    assert lost_of(never_answered(0.0), "ttft_p95@long:1 itl_mean@long:1", at_s=1e5) is None


@pytest.mark.parametrize("budget", ["ttft_p95:0.9x", "ttft_p95@huge:500"])
def test_a_limit_that_cannot_be_proved_is_refused(budget: str) -> None:
    with pytest.raises(ObjectiveError):
        Watched(never_answered(0.0), parse_budget(budget))


def queue(
    *, service_s: float, per_s: int = 10, window_s: int = 60, tokens: int = 20
) -> list[Course]:
    """One server that takes requests in turn, each for ``service_s``, then 50 ms a token."""
    free_s, replay = 0.0, []
    for row in range(per_s * window_s):
        due_s = row / per_s
        free_s = max(free_s, due_s) + service_s
        steps = [(free_s + 0.05 * step, 1) for step in range(tokens)]
        replay.append(Course(due_s, steps, tokens))
    return replay


def lost_after_s(replay: Sequence[Course], budget: str) -> int | None:
    watched = Watched(replay, parse_budget(budget))
    return next((now_s for now_s in LOOKS_S if watched.lost(now_s) is not None), None)


@pytest.mark.parametrize(
    ("budget", "after_s"),
    [("ttft_p95:800", 5), ("e2e_p99:1900", 4), ("ttft_mean:800", 14), ("itl_p99:40", 2)],
)
def test_an_overloaded_engine_is_found_out_in_the_first_quarter_of_the_window(
    budget: str, after_s: int
) -> None:
    """It serves 5 requests a second and gets 10: a window of 60 s would take it 121 s."""
    assert lost_after_s(queue(service_s=0.2), budget) == after_s


def test_an_engine_that_keeps_up_is_left_alone() -> None:
    assert lost_after_s(queue(service_s=0.09), "ttft_p95:91 tpot_p95:51 itl_p99:51") is None


def busy_engine(seed: int) -> list[Course]:
    """Chats and documents at random before one server at 90 % load, with stalls now and then."""
    rng = np.random.default_rng(seed)
    free_s, replay = 0.0, []
    for due_s in np.cumsum(rng.exponential(0.1, 400)).tolist():
        document = rng.random() < 0.15
        free_s = max(free_s, due_s) + rng.exponential(0.4 if document else 0.035)
        gaps_s = rng.exponential(0.02, rng.integers(1, 30)) + (rng.random() < 0.02)
        deliveries = [(free_s + after_s, 1) for after_s in np.cumsum(gaps_s).tolist()]
        prompt_tokens = 5000 if document else 100
        replay.append(Course(due_s, deliveries, len(deliveries), prompt_tokens=prompt_tokens))
    return replay


@pytest.mark.parametrize("seed", range(3))
def test_limits_just_kept_are_never_lost_and_limits_missed_always_are(seed: int) -> None:
    replay = busy_engine(seed)
    values = latencies(samples(replay))

    def limits(factor: float) -> list[Limit]:
        found = [(key, values[metric_key(*key)]) for key in ALL_KEYS]
        return [Limit(*key, limit_ms=value * factor) for key, value in found if value is not None]

    end_s = max(each.end_s for each in replay)
    kept = Watched(replay, Budget(tuple(limits(1.0))))
    assert len(limits(1.0)) == len(ALL_KEYS)
    assert {kept.lost(float(now_s)) for now_s in np.arange(0.0, end_s + 1.0)} == {None}
    for limit in limits(0.98):
        lost = Watched(replay, Budget((limit,))).lost(end_s)
        assert lost is not None
        assert lost.at_least_ms == pytest.approx(values[limit.key])
