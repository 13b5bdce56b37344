from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.forecast.fitting import (
    common_slope,
    nonnegative,
    robust_fit,
    robust_sigma,
    weighted_median,
)


@given(seed=st.integers(0, 10_000), columns=st.integers(1, 12))
def test_the_least_squares_without_negatives_is_optimal(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(30, columns))
    gram, moments = design.T @ design, design.T @ rng.normal(size=30)
    found = nonnegative(gram, moments)
    gain = moments - gram @ found
    assert np.all(found >= 0)
    assert np.all(gain <= 1e-6 * np.abs(moments).max())
    assert gain[found > 0] == pytest.approx(0, abs=1e-6 * np.abs(moments).max())


def test_a_column_of_zeros_has_no_part() -> None:
    assert nonnegative(np.diag([2.0, 0.0]), np.array([4.0, 0.0])) == pytest.approx([2, 0])


def test_stalls_do_not_pull() -> None:
    rng = np.random.default_rng(0)
    design = rng.uniform(1, 2, (200, 2))
    times_s = design @ [2.0, 3.0] * rng.normal(1, 0.01, 200)
    times_s[:10] *= 4
    assert robust_fit(design, times_s, np.ones(200)) == pytest.approx([2, 3], rel=0.06)


def test_a_weighted_median_minds_the_weights() -> None:
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0])) == 2
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([5.0, 1.0, 1.0])) == 3


def test_the_common_slope_survives_outliers_and_levels_of_groups() -> None:
    x = np.tile(np.arange(1.0, 11.0), 2)
    groups = np.repeat([1, 2], 10)
    y = 0.5 * x + 100.0 * groups
    y[3] += 50
    assert common_slope(groups, x, y) == pytest.approx(0.5)


def test_there_is_no_slope_where_nothing_doubles_and_none_below_zero() -> None:
    groups = np.zeros(3, dtype=np.int64)
    y = np.array([0.0, 1.0, 2.0])
    assert common_slope(groups, np.array([10.0, 11.0, 12.0]), y) is None
    assert common_slope(groups, np.array([1.0, 2.0, 3.0]), -y) == 0.0


def test_sigma_is_that_of_normal_values() -> None:
    values = np.random.default_rng(0).normal(5, 2, 4001)
    assert robust_sigma(values) == pytest.approx(2, rel=0.06)
