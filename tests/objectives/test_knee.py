from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from objectives.arrays import F8
from objectives.errors import ObjectiveError
from objectives.knee import Knee, assess, find_knee
from objectives.score import score_cells

INF = float("inf")
tables = st.integers(2, 3).flatmap(
    lambda objectives: npst.arrays(
        np.float64,
        st.tuples(st.integers(1, 10), st.just(objectives)),
        elements=st.integers(1, 1000).map(float),
    )
)

# TTFT and TPOT along a ladder of budgets: small, better, the bend, large.
LADDER = np.array([[2000.0, 20.0], [1200.0, 22.0], [600.0, 25.0], [550.0, 60.0]])


def knee_of(costs: F8, *, draws: F8 | None = None) -> Knee:
    feasible = np.ones(len(costs), dtype=np.bool_)
    knee = find_knee(costs, feasible, score_cells(costs, feasible), draws=draws)
    assert knee is not None
    return knee


def test_knee_is_where_the_curve_bends() -> None:
    knee = knee_of(LADDER)
    assert knee.cell == 2
    assert knee.front.all()
    assert knee.pronounced
    assert knee.faster is not None
    assert knee.slower is not None
    assert (knee.faster.neighbour, knee.slower.neighbour) == (3, 1)
    np.testing.assert_allclose(knee.faster.changes, [-1 / 12, 1.4])
    np.testing.assert_allclose(knee.slower.changes, [1.0, -0.12])
    assert knee.slower.ratio == pytest.approx(math.log(2) / math.log(25 / 22))
    assert knee.certainty is None


def test_a_front_that_is_linear_in_logs_has_no_pronounced_knee() -> None:
    steps = np.arange(5)
    knee = knee_of(np.column_stack([2.0**steps, 2.1 ** (4 - steps)]))
    assert not knee.pronounced


def test_an_end_of_the_front_has_one_neighbour() -> None:
    knee = knee_of(np.array([[100.0, 10.0], [101.0, 9.99], [900.0, 9.9]]))
    assert knee.cell == 0
    assert knee.faster is None
    assert [each.neighbour for each in knee.trade_offs] == [1]


def test_a_cell_that_beats_all_is_pronounced_without_neighbours() -> None:
    knee = knee_of(np.array([[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]]))
    assert (knee.cell, knee.score, knee.trade_offs, knee.pronounced) == (1, 0.0, (), True)


def test_neighbours_of_three_objectives_are_the_nearest_on_each_side() -> None:
    costs = np.array(
        [[100.0, 20.0, 1.0], [90.0, 22.0, 1.05], [50.0, 90.0, 1.0], [130.0, 19.0, 1.0]]
    )
    knee = knee_of(costs)
    assert knee.cell == 0
    assert [each.neighbour for each in knee.trade_offs] == [1, 3]


def test_infeasible_and_infinite_cells_are_no_knee() -> None:
    costs = np.array([[1.0, 1.0], [INF, 1.0], [5.0, 5.0]])
    feasible = np.array([False, True, True])
    knee = find_knee(costs, feasible, score_cells(costs, feasible))
    assert knee is not None
    assert knee.cell == 2
    assert knee.trade_offs == ()
    nobody = np.zeros(3, dtype=np.bool_)
    assert find_knee(costs, nobody, score_cells(costs, nobody)) is None


def test_an_objective_within_noise_does_not_lead() -> None:
    costs = np.array([[100.0, 20.0, 3.0], [101.0, 10.0, 4.0], [102.0, 9.9, 9.0]])
    feasible = np.ones(3, dtype=np.bool_)
    scores = score_cells(costs, feasible, noise=np.array([0.1, 0.0, 0.0]))
    knee = find_knee(costs, feasible, scores)
    assert knee is not None
    assert knee.cell == 1
    assert knee.faster is not None
    assert knee.faster.neighbour == 2


def test_certainty_counts_the_draws() -> None:
    better = LADDER.copy()
    better[1] = [500.0, 22.0]
    knee = knee_of(LADDER, draws=np.stack([LADDER] * 19 + [better]))
    assert knee.certainty is not None
    np.testing.assert_allclose(knee.certainty.probability, [0, 0.05, 0.95, 0])
    assert knee.certainty.knee_set == (2,)
    lost = (math.log(600 / 500) + math.log(25 / 22)) / 2 / math.log(2)
    assert knee.certainty.expected_opportunity_cost == pytest.approx(lost / 20)
    assert knee.certainty.regret_bound == pytest.approx(lost)


def test_knee_set_covers_nine_of_ten_draws() -> None:
    first, second = np.array([[1.0], [2.0], [9.0]]), np.array([[2.0], [1.0], [9.0]])
    feasible = np.ones(3, dtype=np.bool_)
    scores = score_cells(first, feasible)
    even = assess(np.stack([first] * 6 + [second] * 4), feasible, scores, 0)
    assert even.knee_set == (0, 1)
    most = assess(np.stack([first] * 9 + [second]), feasible, scores, 0)
    assert most.knee_set == (0,)
    other = assess(np.stack([first] * 9 + [second]), feasible, scores, 1)
    assert other.expected_opportunity_cost == pytest.approx(0.9)


def test_ties_share_a_draw_and_infeasible_cells_win_none() -> None:
    draws = np.array([[[1.0], [1.0], [0.5]]])
    feasible = np.array([True, True, False])
    found = assess(draws, feasible, score_cells(draws[0], feasible), 0)
    assert found.probability.tolist() == [0.5, 0.5, 0.0]
    assert found.regret_bound == 0.0


def test_a_draw_that_loses_the_knee_is_infinitely_bad() -> None:
    draws = np.stack([LADDER, LADDER])
    draws[1, 2] = INF
    knee = knee_of(LADDER, draws=draws)
    assert knee.certainty is not None
    assert knee.certainty.expected_opportunity_cost == INF
    assert knee.certainty.regret_bound == INF


def test_draws_must_fit() -> None:
    with pytest.raises(ObjectiveError, match=r"expected \(resamples, 4, 2\)"):
        knee_of(LADDER, draws=LADDER)
    feasible = np.array([True, True, True, False])
    with pytest.raises(ObjectiveError, match="must be feasible"):
        assess(LADDER[None], feasible, score_cells(LADDER, feasible), 3)


@given(tables, st.floats(1e-2, 1e2))
def test_units_do_not_move_the_knee(costs: F8, factor: float) -> None:
    knee, scaled = knee_of(costs), knee_of(costs * factor)
    assert scaled.score == pytest.approx(knee.score, abs=1e-9)
    # Rounding may swap cells of equal score, so it is the score that is compared.
    values = score_cells(costs, np.ones(len(costs), dtype=np.bool_)).values
    assert values[scaled.cell] == pytest.approx(knee.score, abs=1e-9)


@given(tables, st.floats(1.01, 10.0), st.integers(0, 9))
def test_a_dominated_cell_does_not_move_the_knee(costs: F8, worse: float, of: int) -> None:
    knee = knee_of(costs)
    more = knee_of(np.vstack([costs, worse * costs[of % len(costs)]]))
    assert (more.cell, more.score) == (knee.cell, knee.score)
    assert more.trade_offs == knee.trade_offs
    assert not more.front[-1]


@given(tables, st.randoms(use_true_random=False))
def test_order_of_cells_does_not_move_the_knee(costs: F8, random: Random) -> None:
    order = list(range(len(costs)))
    random.shuffle(order)
    knee, shuffled = knee_of(costs), knee_of(costs[order])
    assert shuffled.score == knee.score
    values = score_cells(costs, np.ones(len(costs), dtype=np.bool_)).values
    assume(np.unique(values).size == len(costs))
    assert order[shuffled.cell] == knee.cell


@given(tables)
def test_leaving_the_knee_never_gains_more_than_it_loses(costs: F8) -> None:
    knee = knee_of(costs)
    assert knee.front[knee.cell]
    assert all(each.ratio >= 1 - 1e-9 for each in knee.trade_offs)
