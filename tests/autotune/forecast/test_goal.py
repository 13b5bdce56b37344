from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from autotune.forecast.goal import MOST_EXCESS, Goal, Scale
from objectives.arrays import F8
from objectives.limits import parse_budget
from objectives.score import score_cells

KEYS = ("ttft_p95", "itl_p99", "e2e_p50", "utilization")
COSTS = ("ttft_p95", "itl_p99", "utilization")
NAN, INF = math.nan, math.inf
cells = npst.arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.just(len(KEYS))),
    elements=st.integers(1, 1000).map(float),
)
limits_ms = st.none() | st.integers(1, 1000).map(lambda limit: limit + 0.5)


def goal_of(budget: str) -> Goal:
    return Goal.of(parse_budget(budget), KEYS, COSTS)


def logs_of(*rows: tuple[float, ...]) -> F8:
    logs: F8 = np.log(np.array(rows))
    return logs


@settings(max_examples=60)
@given(values=cells, limits=st.tuples(limits_ms, limits_ms, limits_ms))
def test_scores_are_those_of_a_verdict_where_the_budget_is_kept(
    values: F8, limits: tuple[float | None, float | None, float | None]
) -> None:
    named = [(key, limit) for key, limit in zip(KEYS, limits, strict=False) if limit is not None]
    goal = goal_of(" ".join(f"{key}:{limit}" for key, limit in named))
    bounds = np.array([NAN if limit is None else limit for limit in limits])
    over = values[:, :3] / np.where(np.isnan(bounds), INF, bounds)
    kept = np.all(over < 1, axis=1)
    costs = np.column_stack([values[:, :2], 1 / values[:, 3]])
    scores = score_cells(costs, kept, np.append(bounds[:2], NAN))

    logs = np.log(values)
    scale = Scale.of(goal, logs)
    np.testing.assert_allclose(scale.scores.ideal, scores.ideal, rtol=1e-9)
    np.testing.assert_allclose(scale.scores.anchor, scores.anchor, rtol=1e-9)
    found = scale.losses(logs)
    linear = kept & (scores.values <= 0.9)
    np.testing.assert_allclose(found[linear], scores.values[linear], atol=1e-9)
    order = np.argsort(scores.values[kept])
    assert (np.diff(found[kept][order]) >= 0).all()
    assert (found[kept] <= 1).all()
    excess = np.minimum(np.log(over[~kept].max(axis=1)), MOST_EXCESS)
    np.testing.assert_allclose(found[~kept], 1 + excess, atol=1e-9)


def test_what_keeps_the_budget_never_loses_to_what_breaks_it() -> None:
    goal = goal_of("ttft_p95:500")
    logs = logs_of((490, 20, 1, 0.5), (480, 200, 1, 0.05), (505, 20, 1, 0.5))
    good, bad, broken = Scale.of(goal, logs).losses(logs).tolist()
    assert good < bad < 1 < broken


def test_limits_on_what_is_scored_anchor_its_scale() -> None:
    goal = goal_of("ttft_p95:400 e2e_p50:9000")
    assert goal.costs.tolist() == [0, 1, 3]
    assert goal.limits.tolist() == [0, 2]
    np.testing.assert_allclose(np.exp(goal.log_limits), [400, 9000])
    np.testing.assert_allclose(np.exp(goal.anchors), [400, NAN, NAN])


def test_the_worst_limit_is_what_is_missed() -> None:
    goal = goal_of("ttft_p95:100 itl_p99:50")
    found = goal.excess(logs_of((90, 40, 1, 1), (200, 40, 1, 1), (200, 200, 1, 1)))
    np.testing.assert_allclose(found, np.log([1, 2, 4]))


@pytest.mark.parametrize("value", [INF, NAN])
def test_what_is_not_known_or_never_ends_misses_its_limit(value: float) -> None:
    goal = goal_of("ttft_p95:100")
    logs = logs_of((value, 40, 1, 1), (50, 40, 1, 1))
    assert goal.excess(logs).tolist() == [MOST_EXCESS, 0]
    assert Scale.of(goal, logs).losses(logs).tolist() == [1 + MOST_EXCESS, 0]


def test_without_limits_nothing_is_missed() -> None:
    goal = goal_of("")
    logs = logs_of((100, 10, 1, 0.5), (200, 40, 1, 0.5))
    assert goal.excess(logs).tolist() == [0, 0]
    np.testing.assert_allclose(Scale.of(goal, logs).losses(logs), [0, 1 - 0.1 / math.e])


def test_more_utilization_is_better() -> None:
    logs = logs_of((100, 10, 1, 0.25), (100, 10, 1, 0.5))
    np.testing.assert_allclose(Scale.of(goal_of(""), logs).losses(logs), [1 / 3, 0])


def test_an_objective_of_which_no_cell_has_a_value_does_not_count() -> None:
    logs = logs_of((100, NAN, 1, 0.5), (200, NAN, 1, 0.5))
    np.testing.assert_allclose(Scale.of(goal_of(""), logs).losses(logs), [0, 0.5])
    nothing = np.full((2, 4), NAN)
    assert Scale.of(goal_of(""), nothing).losses(nothing).tolist() == [0, 0]


def test_a_budget_near_the_ideal_does_not_blow_differences_up() -> None:
    logs = logs_of((100, 10, 1, 0.5), (100.5, 10, 1, 0.5))
    scale = Scale.of(goal_of("ttft_p95:101"), logs)
    assert scale.scores.anchor[0] / scale.scores.ideal[0] == pytest.approx(1.25)


def test_losses_of_draws_have_the_shape_of_the_draws() -> None:
    logs = logs_of((100, 10, 1, 0.5), (200, 40, 1, 0.5))
    scale = Scale.of(goal_of("ttft_p95:150"), logs)
    draws = np.stack([logs, logs + 1])
    assert scale.losses(draws).shape == (2, 2)
    np.testing.assert_allclose(scale.losses(draws)[0], scale.losses(logs))
