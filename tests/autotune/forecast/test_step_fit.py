from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.forecast.step_fit import (
    Curve,
    choose_knots,
    nonnegative_gram,
    padded,
    ramps,
    robust_fit,
    sums,
    time_bins,
)

SIZES = (1, 2, 4, 8, 16)


@given(seed=st.integers(0, 10_000), columns=st.integers(1, 12))
def test_the_least_squares_without_negatives_is_optimal(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(30, columns))
    gram, moments = design.T @ design, design.T @ rng.normal(size=30)
    found = nonnegative_gram(gram, moments)
    gain = moments - gram @ found
    assert np.all(found >= 0)
    assert np.all(gain <= 1e-6 * np.abs(moments).max())
    assert gain[found > 0] == pytest.approx(0, abs=1e-6 * np.abs(moments).max())


def test_a_column_of_zeros_has_no_part() -> None:
    assert nonnegative_gram(np.diag([2.0, 0.0]), np.array([4.0, 0.0])) == pytest.approx([2, 0])


def test_stalls_do_not_pull() -> None:
    rng = np.random.default_rng(0)
    design = rng.uniform(1, 2, (200, 2))
    times_s = design @ [2.0, 3.0] * rng.normal(1, 0.01, 200)
    times_s[:10] *= 4
    assert robust_fit(design, times_s, np.ones(200)) == pytest.approx([2, 3], rel=0.06)


def test_counts_are_padded_up_to_the_capture_limit() -> None:
    assert padded(np.array([1, 3, 5, 16, 17]), SIZES).tolist() == [1, 4, 8, 16, 17]
    assert padded(np.array([3, 99]), ()).tolist() == [3, 99]


def test_knots_are_where_much_was_measured_and_right_after_the_capture_limit() -> None:
    counts = np.array([1.0, 4, 4, 4, 16, 16, 16, 30, 30, 30, 64])
    assert choose_knots(counts, 16).tolist() == [1, 4, 16, 17, 64]
    assert choose_knots(counts, 0).tolist() == [1, 4, 16, 30, 64]
    assert choose_knots(np.array([30.0]), 16).tolist() == [17, 30]
    assert choose_knots(np.array([17.0, 17.0]), 16).tolist() == [17]


def test_ramps_make_a_line_through_the_knots() -> None:
    knots, heights = np.array([1.0, 4.0, 10.0]), np.array([2.0, 3.0, 7.0])
    at = np.array([0.0, 1.0, 2.5, 9.0, 12.0])
    rises = np.diff(heights, prepend=0.0)
    assert ramps(at, knots) @ rises == pytest.approx(np.interp(at, knots, heights))


def test_beyond_the_last_knot_a_curve_rises_as_over_the_last_doubling() -> None:
    curve = Curve(np.array([10.0, 50.0, 100.0]), np.array([1.0, 5.0, 6.0]), ())
    assert curve(np.array([5, 200])) == pytest.approx([1, 8])
    dense = curve.dense(200)
    assert dense[0] == 0
    assert dense[-1] == pytest.approx(8)


def test_the_jump_at_the_capture_limit_is_not_carried_on() -> None:
    curve = Curve(np.array([8.0, 16.0, 17.0, 24.0]), np.array([1.0, 2.0, 9.0, 9.7]), SIZES)
    assert curve(np.array([9, 16, 17, 34])) == pytest.approx([2, 2, 9, 10.7])
    single = Curve(np.array([8.0, 16.0, 17.0]), np.array([1.0, 2.0, 9.0]), SIZES)
    assert single(np.array([25])) == pytest.approx([10])
    assert Curve(np.array([17.0]), np.array([9.0]), SIZES)(np.array([99])) == pytest.approx([9])


def test_bins_are_equal_shares_of_the_time_and_none_is_empty() -> None:
    times_s = np.array([0.1, 0.1, 0.0, 0.2, 0.0])
    bins = time_bins(times_s, 0.2)
    assert bins.tolist() == [0, 0, 0, 1, 1]
    assert sums(bins, times_s) == pytest.approx([0.2, 0.2])
    assert time_bins(np.array([1.0]), 0.25).tolist() == [0]
