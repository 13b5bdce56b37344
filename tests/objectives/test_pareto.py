from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from objectives.arrays import F8
from objectives.pareto import non_dominated

INF = float("inf")
coarse = st.sampled_from([1.0, 2.0, 3.0, INF])
tables = st.integers(1, 3).flatmap(
    lambda objectives: npst.arrays(
        np.float64, st.tuples(st.integers(1, 12), st.just(objectives)), elements=coarse
    )
)


@pytest.mark.parametrize(
    ("costs", "front"),
    [
        ([[1, 3], [2, 2], [3, 1], [3, 3]], [True, True, True, False]),
        ([[1, 2], [1, 2], [1, 3]], [True, True, False]),
        ([[1, INF], [INF, INF], [2, 5]], [True, False, True]),
        ([[1, np.nan], [1, 9]], [False, True]),
        ([[1, 1, 2], [1, 2, 1], [1, 2, 2]], [True, True, False]),
    ],
)
def test_front(costs: list[list[float]], front: list[bool]) -> None:
    assert non_dominated(np.array(costs, dtype=np.float64)).tolist() == front


def test_infeasible_cells_neither_count_nor_dominate() -> None:
    costs = np.array([[1.0, 1.0], [2.0, 2.0]])
    assert non_dominated(costs, np.array([False, True])).tolist() == [False, True]
    assert not non_dominated(costs, np.array([False, False])).any()


def test_no_cells_have_no_front() -> None:
    assert non_dominated(np.zeros((0, 2))).shape == (0,)


@given(tables)
def test_front_is_what_the_definition_says(costs: F8) -> None:
    def dominates(a: F8, b: F8) -> bool:
        return bool((a <= b).all() and (a < b).any())

    expected = [not any(dominates(other, cell) for other in costs) for cell in costs]
    assert non_dominated(costs).tolist() == expected
    assert any(expected)


@given(tables, st.randoms(use_true_random=False))
def test_order_of_cells_does_not_matter(costs: F8, random: Random) -> None:
    order = list(range(len(costs)))
    random.shuffle(order)
    np.testing.assert_array_equal(non_dominated(costs[order]), non_dominated(costs)[order])
