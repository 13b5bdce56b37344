from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.forecast.residuals import (
    CELL,
    LEAST_NOISE,
    LOCAL,
    NOISE_PRIORS,
    NOISE_SCALES,
    OFFSET,
    RUN_NOISE,
    SCALE_PRIORS,
    SCALES,
    TILE,
    USELESS_PRIOR,
    Corrected,
    correct,
)
from objectives.arrays import F8, I8

TIME_ERROR = 0.02
PLACES = np.array([(tokens, seqs) for tokens in range(8, 14) for seqs in (4, 6, 8)], dtype=float)
CELLS = len(PLACES)
TOKENS, SEQS = PLACES.T
LOGS = np.column_stack(
    [
        4.5 + 0.6 * np.abs(TOKENS - 11) + 0.35 * (8 - SEQS),
        2.5 + 0.45 * (TOKENS - 8) + 0.1 * (SEQS - 4),
        -0.5 - 0.05 * np.abs(TOKENS - 11),
    ]
)
"""TTFT, gaps and utilization, as where small steps overload an engine and large ones are slow."""
SLOPES = np.tile([2.0, 1.0, -1.0], (CELLS, 1))
CHANCE = 0.01


class Trials(NamedTuple):
    rows: I8
    logs: F8


def corrected(trials: Trials, *, logs: F8 = LOGS) -> Corrected:
    return correct(
        logs,
        SLOPES,
        np.full(LOGS.shape, CHANCE),
        PLACES,
        measured=trials.rows,
        measured_logs=trials.logs,
        time_error=TIME_ERROR,
    )


def smooth(random: np.random.Generator) -> F8:
    """Errors as a good model has them: one that all cells share, and one that neighbours do."""
    apart = ((PLACES[:, np.newaxis] - PLACES) ** 2).sum(axis=2)
    root = np.linalg.cholesky(np.exp(-apart / 4.5) + 1e-9 * np.eye(CELLS))
    shared = random.normal(0, OFFSET, LOGS.shape[1])
    return np.asarray(shared + LOCAL * (root @ random.normal(size=LOGS.shape)))


def tried(random: np.random.Generator, count: int, *, noise: float = 0.015) -> Trials:
    rows = random.permutation(CELLS)[:count]
    truth = (LOGS + smooth(random))[rows]
    return Trials(rows, truth + random.normal(0, noise, truth.shape))


def none() -> Trials:
    return Trials(np.zeros(0, dtype=np.int64), np.zeros((0, 3)))


def test_without_trials_forecasts_stand_as_far_as_a_model_is_believed() -> None:
    found = corrected(none())
    np.testing.assert_array_equal(found.logs, LOGS)
    parts = OFFSET**2 + LOCAL**2 + TILE**2 + CELL**2 + (TIME_ERROR * SLOPES) ** 2
    scale = np.average(np.square(SCALES), weights=SCALE_PRIORS)
    np.testing.assert_allclose(found.sigma**2, scale * parts)
    assert found.trust == pytest.approx(1 - USELESS_PRIOR)


def test_a_trial_that_says_nothing_changes_nothing() -> None:
    silent = Trials(np.array([3, 5]), np.full((2, 3), np.nan))
    found = corrected(silent)
    np.testing.assert_array_equal(found.logs, LOGS)
    assert found.trust == pytest.approx(1 - USELESS_PRIOR)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), count=st.integers(1, CELLS))
def test_what_was_measured_is_met_within_noise(seed: int, count: int) -> None:
    trials = tried(np.random.default_rng(seed), count, noise=0.0)
    found = corrected(trials)
    noise = np.sqrt(LEAST_NOISE**2 + (RUN_NOISE * SLOPES) ** 2 + CHANCE**2)[trials.rows]
    assert (np.abs(found.logs[trials.rows] - trials.logs) < 3 * noise).all()
    assert (found.sigma[trials.rows] < 2.5 * noise).all()


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_ranges_hold_as_many_candidates_as_they_say(count: int) -> None:
    """Where errors and noise are what is believed of them, of a size that nobody tells."""
    random = np.random.default_rng(count)
    apart = ((PLACES[:, np.newaxis] - PLACES) ** 2).sum(axis=2)
    shared = OFFSET**2 + LOCAL**2 * np.exp(-apart / 4.5) + TILE**2 * (TOKENS[:, None] == TOKENS)
    shared += CELL**2 * np.eye(CELLS) + TIME_ERROR**2 * SLOPES[0, 0] ** 2
    root = np.linalg.cholesky(shared)
    noise = np.sqrt(LEAST_NOISE**2 + (RUN_NOISE * SLOPES[0, 0]) ** 2 + CHANCE**2)
    scales = np.array(SCALE_PRIORS) / sum(SCALE_PRIORS)
    inside = []
    for _ in range(60):
        errors = random.choice(SCALES, p=scales) * root @ random.standard_normal(CELLS)
        rows = random.choice(CELLS, count, replace=False)
        loud = random.choice(NOISE_SCALES, p=NOISE_PRIORS)
        measured = errors[rows] + loud * noise * random.standard_normal(count)
        found = corrected(Trials(rows, LOGS[rows] + measured[:, np.newaxis]))
        off = np.abs(LOGS[:, 0] + errors - found.logs[:, 0]) / found.sigma[:, 0]
        inside.append(np.delete(off, rows) < 1.645)
    assert 0.85 < np.mean(inside) < 0.96


def test_one_trial_moves_its_neighbours_and_less_so_what_is_far_away() -> None:
    # Beyond what all cells could share, so that it is an error of this place.
    trials = Trials(np.array([0]), LOGS[[0]] + 0.2)
    moved = corrected(trials).logs - LOGS
    beside, far = 3, CELLS - 1
    assert (moved[0] > moved[beside]).all()
    assert (moved[beside] > moved[far]).all()
    assert (moved[far] > 0).all()


def test_an_error_of_step_times_moves_what_follows_them() -> None:
    slopes = np.where(np.arange(CELLS) < 9, 0.0, 3.0)[:, np.newaxis] * np.ones((1, 3))
    rows = np.array([9, 12])
    found = correct(
        LOGS,
        slopes,
        np.full(LOGS.shape, CHANCE),
        PLACES,
        measured=rows,
        measured_logs=LOGS[rows] + 0.3,
        time_error=0.1,
    )
    moved = (found.logs - LOGS).mean(axis=1)
    # Equally far from a trial, one follows the pace of steps and one does not.
    assert PLACES[[6, 15], 0].tolist() == [10, 13]
    assert moved[15] > 0.25
    assert moved[6] < 0.6 * moved[15]


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), row=st.integers(0, CELLS - 1))
def test_measuring_again_narrows_what_is_known_of_a_cell(seed: int, row: int) -> None:
    logs = (LOGS + smooth(np.random.default_rng(seed)))[row]
    sigmas = [
        corrected(Trials(np.full(count, row), np.tile(logs, (count, 1)))).sigma[row]
        for count in (1, 2, 4)
    ]
    assert (sigmas[1] < sigmas[0]).all()
    assert (sigmas[2] < sigmas[1]).all()


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 10))
def test_the_order_of_trials_does_not_matter(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    trials = tried(random, count)
    order = random.permutation(count)
    one, other = corrected(trials), corrected(Trials(trials.rows[order], trials.logs[order]))
    np.testing.assert_allclose(other.logs, one.logs, atol=1e-9)
    np.testing.assert_allclose(other.sigma, one.sigma, atol=1e-9)
    assert other.trust == pytest.approx(one.trust)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 8))
def test_a_model_that_is_of_use_stays_trusted(seed: int, count: int) -> None:
    assert corrected(tried(np.random.default_rng(seed), count)).trust > 0.9


def test_forecasts_of_the_wrong_cells_lose_trust_in_three_trials() -> None:
    lost = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        shuffled = LOGS[random.permutation(CELLS)]
        lost.append(corrected(tried(random, 3), logs=shuffled).trust < 0.5)
    assert np.mean(lost) > 0.85


def test_forecasts_that_are_all_off_by_one_factor_stay_of_use() -> None:
    random = np.random.default_rng(0)
    trials = tried(random, 4)
    found = corrected(trials, logs=LOGS - 0.15)
    assert found.trust > 0.9
    rest = np.setdiff1d(np.arange(CELLS), trials.rows)
    off = np.abs(found.logs - LOGS)[rest].mean()
    assert off < 0.08


def test_what_never_ends_stays_so_and_teaches_nothing() -> None:
    logs = LOGS.copy()
    logs[0] = np.inf
    found = corrected(Trials(np.array([0]), LOGS[[0]]), logs=logs)
    assert np.isinf(found.logs[0]).all()
    np.testing.assert_array_equal(found.logs[1:], LOGS[1:])
    assert np.isfinite(found.sigma).all()


def test_noise_beyond_what_was_expected_widens_what_is_said() -> None:
    rows = np.repeat(np.arange(4), 3)
    calm = Trials(rows, LOGS[rows])
    swing = np.tile([-0.1, 0.0, 0.1], 4)[:, np.newaxis]
    wild = corrected(Trials(rows, LOGS[rows] + swing))
    assert (wild.sigma > corrected(calm).sigma).all()
    assert wild.trust > 0.9
