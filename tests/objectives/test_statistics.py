from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.arrays import F8, I8
from objectives.bootstrap import resample_weights
from objectives.errors import ObjectiveError
from objectives.statistics import (
    AGGREGATES,
    Interval,
    aggregate,
    bootstrap_draws,
    intervals,
    requests_needed,
    student_t_95,
)

INF = float("inf")


def pooled_interval(
    values: F8, owner: I8, requests: int, name: str, *, resamples: int = 400, seed: int = 0
) -> Interval:
    weights = resample_weights(requests, resamples=resamples, seed=seed)
    return intervals(values, owner, weights, (name,))[name]


def interval(values: F8, name: str, *, resamples: int = 400, seed: int = 0) -> Interval:
    """Bounds of an aggregate of one value per request."""
    rows = np.arange(values.size)
    return pooled_interval(values, rows, values.size, name, resamples=resamples, seed=seed)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_finite_aggregates_are_numpys(values: list[float]) -> None:
    array = np.array(values)
    assert aggregate(array, "mean") == np.mean(array)
    assert aggregate(array, "max") == np.max(array)
    for name in ("p50", "p90", "p95", "p99"):
        assert aggregate(array, name) == np.percentile(array, float(name[1:]))


@given(
    st.lists(st.sampled_from([1.0, 2.0, INF, math.nan]), max_size=30),
    st.sampled_from(AGGREGATES),
)
def test_aggregates_are_never_nan(values: list[float], name: str) -> None:
    found = aggregate(np.array(values), name)
    if all(math.isnan(value) for value in values):
        assert found is None
    else:
        assert found is not None
        assert not math.isnan(found)


def test_infinite_values_reach_only_as_far_as_they_lie() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, INF])
    assert aggregate(values, "p50") == 3.0
    assert aggregate(values[1:], "p50") == 3.5
    assert aggregate(values, "p90") == INF
    assert aggregate(values, "mean") == INF


def test_unknown_aggregates_have_a_nearest_one() -> None:
    with pytest.raises(ObjectiveError, match="'p96'") as caught:
        aggregate(np.array([1.0]), "p96")
    assert "did you mean" in caught.value.hint


def test_requests_needed_is_the_least_that_leaves_a_tail() -> None:
    assert requests_needed("p95") == 72
    assert requests_needed("p99") == 368
    assert requests_needed("max") is None
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        needed = requests_needed(name)
        assert needed is not None
        assert 1 - q**needed >= 0.975 > 1 - q ** (needed - 1)


@pytest.mark.parametrize(("name", "needed"), [("p95", 72), ("p99", 368), ("mean", 2)])
def test_upper_bound_needs_enough_requests(name: str, needed: int) -> None:
    values = np.random.default_rng(0).exponential(size=needed)
    assert interval(values[:-1], name).high is None
    assert interval(values, name).high is not None
    assert interval(np.append(values[:-1], np.nan), name).high is None


def test_max_has_no_upper_bound_and_one_value_has_none_at_all() -> None:
    values = np.random.default_rng(0).exponential(size=1000)
    assert interval(values, "max").high is None
    assert interval(values, "max").low is not None
    assert interval(values[:1], "p50") == Interval(None, None)
    assert interval(values[:0], "p50") == Interval(None, None)


@pytest.mark.parametrize(
    ("name", "quantile", "requests"),
    [("p50", 0.5, 300), ("p95", 0.95, 100), ("p95", 0.95, 400), ("p99", 0.99, 400)],
)
def test_upper_bound_of_independent_values_misses_no_more_than_it_says(
    name: str, quantile: float, requests: int
) -> None:
    """One sample in twenty may miss; 19 of 200 is three standard deviations above that."""
    truth = -math.log(1 - quantile)
    misses = 0
    for seed in range(200):
        values = np.random.default_rng(seed).exponential(size=requests)
        high = interval(values, name, resamples=100, seed=seed).high
        assert high is not None
        misses += high < truth
    assert misses <= 19


def test_the_fewest_requests_are_bounded_by_the_largest() -> None:
    for name, fewest in (("p95", 72), ("p99", 368)):
        values = np.random.default_rng(0).exponential(size=fewest)
        assert interval(values, name).high == values.max()


def test_blocks_see_that_late_requests_come_together() -> None:
    rng = np.random.default_rng(0)
    busy = np.repeat(rng.exponential(size=25), 40)
    alone = rng.permutation(busy)
    together, apart = interval(busy, "mean"), interval(alone, "mean")
    assert together.low is not None
    assert together.high is not None
    assert apart.low is not None
    assert apart.high is not None
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_lost_requests_make_the_upper_bound_infinite() -> None:
    values = np.ones(1000)
    values[480:520] = INF
    assert aggregate(values, "p95") == 1.0
    assert interval(values, "p95").high == INF
    assert interval(values, "p50") == Interval(1.0, 1.0)


def test_pooled_values_travel_with_their_request() -> None:
    """One value per request is the plain case; copies of it add no certainty."""
    values = np.random.default_rng(0).exponential(size=400)
    rows = np.arange(400)
    plain = interval(values, "p50")
    assert pooled_interval(values, rows, 400, "p50") == plain
    copied = pooled_interval(np.repeat(values, 50), np.repeat(rows, 50), 400, "p50")
    assert copied.low == pytest.approx(plain.low, rel=0.02)
    draws = bootstrap_draws(values, "p50")
    assert copied.high == pytest.approx(np.quantile(draws, 0.95), rel=0.02)


def test_pooled_bound_counts_requests_not_gaps() -> None:
    owner = np.repeat(np.arange(50), 1000)
    values = np.random.default_rng(0).exponential(size=owner.size)
    assert pooled_interval(values, owner, 500, "p95").high is None


def test_draws_of_one_trace_are_paired() -> None:
    values = np.random.default_rng(0).exponential(size=300)
    slow = bootstrap_draws(2 * values, "p95", seed=4)
    np.testing.assert_allclose(slow, 2 * bootstrap_draws(values, "p95", seed=4))
    pooled = bootstrap_draws(values, "p95", owner=np.arange(300), requests=300, seed=4)
    np.testing.assert_allclose(2 * pooled, slow)


@pytest.mark.parametrize(
    ("degrees_of_freedom", "quantile"),
    [
        (1, 6.3138),
        (2, 2.9200),
        (3, 2.3534),
        (4, 2.1318),
        (5, 2.0150),
        (6, 1.9432),
        (10, 1.8125),
        (30, 1.6973),
        (31, 1.6955),
        (100, 1.6602),
        (10**9, 1.6449),
    ],
)
def test_students_t_is_that_of_the_tables(degrees_of_freedom: int, quantile: float) -> None:
    assert student_t_95(degrees_of_freedom) == pytest.approx(quantile, abs=1.5e-4)


def test_students_t_falls_with_the_degrees_of_freedom() -> None:
    quantiles = [student_t_95(count) for count in range(1, 200)]
    assert all(right < left for left, right in itertools.pairwise(quantiles))
    with pytest.raises(ObjectiveError, match="not 0"):
        student_t_95(0)
