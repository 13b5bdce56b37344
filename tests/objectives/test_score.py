from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from objectives.arrays import F8, Bools
from objectives.errors import ObjectiveError
from objectives.score import score_cells

INF = float("inf")
ALL = np.ones(3, dtype=np.bool_)
tables = npst.arrays(
    np.float64,
    st.tuples(st.integers(1, 10), st.just(2)),
    elements=st.integers(1, 10_000).map(float),
)


def test_z_runs_from_the_ideal_to_the_budget() -> None:
    costs = np.array([[100.0, 10.0], [400.0, 20.0], [200.0, 40.0]])
    scores = score_cells(costs, ALL, np.array([400.0, 40.0]))
    np.testing.assert_allclose(scores.ideal, [100, 10])
    np.testing.assert_allclose(scores.anchor, [400, 40])
    np.testing.assert_allclose(scores.values, [0, 0.75, 0.75])
    np.testing.assert_allclose(scores.z(costs), [[0.0, 0.0], [1.0, 0.5], [0.5, 1.0]])


def test_without_a_budget_the_anchor_is_twice_the_ideal() -> None:
    costs = np.array([[100.0, 10.0], [200.0, 10.0], [100.0, 40.0]])
    scores = score_cells(costs, ALL, np.array([np.nan, np.nan]))
    np.testing.assert_allclose(scores.anchor, [200, 20])
    np.testing.assert_allclose(scores.values, [0, 0.5, 1])
    np.testing.assert_allclose(score_cells(costs, ALL).values, scores.values)


@pytest.mark.parametrize("budget", [101.0, 50.0])
def test_a_budget_near_the_ideal_does_not_blow_differences_up(budget: float) -> None:
    costs = np.array([[100.0], [125.0], [110.0]])
    scores = score_cells(costs, ALL, np.array([budget]))
    np.testing.assert_allclose(scores.values, [0, 1, math.log(1.1) / math.log(1.25)])


def test_ideal_is_of_feasible_cells() -> None:
    costs = np.array([[10.0], [100.0], [200.0]])
    scores = score_cells(costs, np.array([False, True, True]))
    assert scores.ideal.tolist() == [100]
    assert scores.values[0] < 0
    assert score_cells(costs, np.zeros(3, dtype=np.bool_)).ideal.tolist() == [10]


def test_what_lies_within_its_noise_does_not_count() -> None:
    costs = np.array([[100.0, 10.0], [102.0, 20.0], [101.0, 40.0]])
    scores = score_cells(costs, ALL, noise=np.array([0.05, 0.05]))
    assert scores.used.tolist() == [False, True]
    np.testing.assert_allclose(scores.values, [0, 1, 2])
    nothing = score_cells(costs, ALL, noise=np.array([9.0, 9.0]))
    assert nothing.values.tolist() == [0, 0, 0]
    unknown = score_cells(costs, ALL, noise=np.array([np.nan, np.nan]))
    assert unknown.used.all()


def test_spread_within_noise_is_judged_over_feasible_cells() -> None:
    costs = np.array([[100.0], [900.0], [101.0]])
    feasible = np.array([True, False, True])
    noise = np.array([0.05])
    assert score_cells(costs, feasible, noise=noise).used.tolist() == [False]
    alone = np.array([True, False, False])
    assert score_cells(costs, alone, noise=noise).used.tolist() == [True]


def test_infinite_and_missing_costs_score_infinite() -> None:
    costs = np.array([[1.0, INF], [1.0, np.nan], [2.0, 3.0]])
    scores = score_cells(costs, ALL)
    assert scores.values[:2].tolist() == [INF, INF]
    assert math.isfinite(scores.values[2])
    never = score_cells(np.array([[1.0, INF], [2.0, np.nan]]), ALL[:2])
    assert never.used.tolist() == [True, False]
    np.testing.assert_allclose(never.values, [0, 1])


def test_any_costs_are_scored_on_the_same_scale() -> None:
    costs = np.array([[100.0, 10.0], [400.0, 20.0], [200.0, 40.0]])
    scores = score_cells(costs, ALL)
    draws = np.stack([costs, 2 * costs])
    np.testing.assert_allclose(scores.of(draws), [scores.values, scores.values + 1])


@pytest.mark.parametrize(
    ("costs", "feasible", "budgets", "message"),
    [
        (np.ones(3), ALL, None, "do not fit"),
        (np.ones((2, 2)), ALL, None, "do not fit"),
        (np.zeros((3, 2)), ALL, None, "must be positive"),
        (np.ones((3, 2)), ALL, np.ones(3), "one budget"),
    ],
)
def test_misfits_are_refused(costs: F8, feasible: Bools, budgets: F8 | None, message: str) -> None:
    with pytest.raises(ObjectiveError, match=message):
        score_cells(costs, feasible, budgets)


@given(tables, st.floats(1e-3, 1e3), st.floats(1.0, 1e4))
def test_units_do_not_matter(costs: F8, factor: float, budget: float) -> None:
    feasible = np.ones(len(costs), dtype=np.bool_)
    budgets = np.array([budget, np.nan])
    scores = score_cells(costs, feasible, budgets)
    unit = np.array([factor, 1 / factor])
    scaled = score_cells(costs * unit, feasible, budgets * unit)
    np.testing.assert_allclose(scaled.values, scores.values, rtol=1e-7, atol=1e-9)


@given(tables)
def test_least_score_is_zero_only_for_the_ideal(costs: F8) -> None:
    feasible = np.ones(len(costs), dtype=np.bool_)
    scores = score_cells(costs, feasible)
    assert (scores.values >= 0).all()
    np.testing.assert_array_equal(scores.values == 0, (costs == scores.ideal).all(axis=1))
