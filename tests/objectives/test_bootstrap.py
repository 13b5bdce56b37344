from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.bootstrap import (
    Resampled,
    block_bootstrap_indices,
    default_block,
    resample_weights,
)


@pytest.mark.parametrize(
    ("requests", "block"),
    [(0, 1), (1, 1), (3, 1), (100, 25), (200, 50), (1000, 50), (2000, 100), (9000, 150)],
)
def test_default_block(requests: int, block: int) -> None:
    assert default_block(requests) == block


def test_rows_are_runs_in_arrival_order() -> None:
    rng = np.random.default_rng(0)
    rows = block_bootstrap_indices(10, block=4, resamples=500, rng=rng)
    assert rows.shape == (500, 10)
    steps = np.diff(rows, axis=1)
    assert (np.delete(steps, [3, 7], axis=1) == 1).all()
    assert set(rows[:, 0]) == set(range(7))
    assert (rows.min(), rows.max()) == (0, 9)


def test_a_block_longer_than_the_sample_is_the_sample() -> None:
    rng = np.random.default_rng(0)
    rows = block_bootstrap_indices(3, block=50, resamples=2, rng=rng)
    assert rows.tolist() == [[0, 1, 2]] * 2
    assert block_bootstrap_indices(0, block=50, resamples=2, rng=rng).shape == (2, 0)


def test_weights_count_the_draws_and_repeat_with_the_seed() -> None:
    weights = resample_weights(300, resamples=20, seed=7)
    assert (weights.sum(axis=1) == 300).all()
    np.testing.assert_array_equal(weights, resample_weights(300, resamples=20, seed=7))
    assert (weights != resample_weights(300, resamples=20, seed=8)).any()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    requests=st.integers(1, 12),
    values=st.integers(1, 60),
    q=st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]),
)
def test_look_ups_equal_the_values_written_out(
    seed: int, requests: int, values: int, q: float
) -> None:
    rng = np.random.default_rng(seed)
    pool = rng.integers(0, 20, values).astype(np.float64)
    owner = rng.integers(0, requests, values)
    weights = rng.integers(0, 4, (15, requests)).astype(np.float64)
    resampled = Resampled(pool, owner, weights)
    quantiles, means = resampled.quantiles(q), resampled.means()
    for row, counts in enumerate(weights.astype(np.int64)):
        drawn = np.repeat(pool, counts[owner])
        if drawn.size:
            assert quantiles[row] == pytest.approx(np.quantile(drawn, q))
            assert means[row] == pytest.approx(np.mean(drawn))
        else:
            assert np.isnan([quantiles[row], means[row]]).all()


def test_infinite_values_count_only_where_they_were_drawn() -> None:
    weights = np.array([[2.0, 0.0], [1.0, 1.0]])
    resampled = Resampled(np.array([np.inf, 3.0]), np.array([1, 0]), weights)
    assert resampled.means().tolist() == [3.0, np.inf]
    assert resampled.quantiles(0.5).tolist() == [3.0, np.inf]


def test_nothing_to_draw_gives_nan() -> None:
    resampled = Resampled(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros((3, 0)))
    assert np.isnan(resampled.means()).all()
    assert np.isnan(resampled.quantiles(0.95)).all()
