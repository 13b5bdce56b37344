from __future__ import annotations

import numpy as np
import pytest

from autotune.forecast.fitting import sums
from autotune.forecast.step_fit import (
    Curve,
    choose_knots,
    padded,
    ramps,
    time_bins,
)

SIZES = (1, 2, 4, 8, 16)


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
