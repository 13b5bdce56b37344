from __future__ import annotations

import numpy as np
import pytest

from autotune.forecast.fitting import (
    common_slope,
    nonnegative,
    robust_sigma,
    weighted_median,
)


def test_coefficients_are_found_and_none_is_negative() -> None:
    rng = np.random.default_rng(0)
    design = rng.uniform(0.1, 1, (50, 3))
    exact = nonnegative(design, design @ [1.0, 2.0, 3.0])
    bound = nonnegative(design, design @ [1.0, -2.0, 3.0])
    assert exact == pytest.approx([1, 2, 3])
    assert bound.min() == 0
    assert bound[1] == 0


def test_a_column_of_zeros_has_no_price() -> None:
    assert nonnegative(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([2.0, 4.0])) == pytest.approx(
        [2, 0]
    )


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
