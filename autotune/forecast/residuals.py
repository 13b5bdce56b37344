"""How far forecasts are off, learnt from the trials so far, and whether they are of any use.

The log of measured over forecast is taken as a Gaussian process over the lattice: an offset that
all cells share, an error of all step times that works on each cell by its slope, a part that
neighbours share, and parts of each step budget and of each cell, since the times of tiles err
each for itself (Rasmussen and Williams, 2006, Gaussian Processes for Machine Learning, 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from objectives.arrays import F8, I8

OFFSET = 0.05
LOCAL = 0.06
TILE = 0.03
CELL = 0.01
OCTAVES = 1.5
"""Standard deviations of the parts of the error of a good model, in logs: of the offset, of what
neighbours share, of each step budget, of each cell; and the octaves of a limit over which the
second one changes."""

SCALES = (1.0, 2.0, 4.0)
SCALE_PRIORS = (0.5, 0.3, 0.15)
"""How many times as large the errors of a model may be that is still of use, and how likely that
is before anything was measured."""

NOISE_SCALES = (1.0, 2.0, 4.0)
NOISE_PRIORS = (0.6, 0.3, 0.1)
"""How many times as large the noise may be as expected."""

USELESS_OFFSET = 0.7
USELESS_LOCAL = 0.7
USELESS_PRIOR = 0.05
"""The same of forecasts that tell nothing."""

LEAST_TRUST = 0.5
"""Probability that forecasts are of use, below which the search does without them."""

LEAST_NOISE = 0.01
RUN_NOISE = 0.015
"""Standard deviations between two trials of one cell, in logs: of a metric for itself, and of all
step times, which a metric follows by its slope."""


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """Forecasts of all cells after correction.

    Attributes:
        logs: [cells, keys], means.
        sigma: [cells, keys], standard deviations.
        trust: probability that the forecasts are of use, 0 to 1.
    """

    logs: F8
    sigma: F8
    trust: float


def correct(
    logs: F8,
    slopes: F8,
    noise: F8,
    places: F8,
    *,
    measured: I8,
    measured_logs: F8,
    time_error: float,
) -> Corrected:
    """Correct forecasts by what was measured.

    Args:
        logs: [cells, keys], forecast.
        slopes: [cells, keys], by how much they grow with the log of all step times.
        noise: [cells, keys], standard deviations by chance between trials of one cell.
        places: [cells, axes], where each cell is, in octaves; the step budget first.
        measured: [trials], rows of cells that were measured; one may come again.
        measured_logs: [trials, keys]; what is not finite says nothing.
        time_error: relative standard error of the step times.
    """
    near = _nearness(places)
    shared = OFFSET**2 + LOCAL**2 * near
    same_budget = places[:, np.newaxis, 0] == places[np.newaxis, :, 0]
    shared = shared + TILE**2 * same_budget + CELL**2 * np.eye(len(places))
    variances = LEAST_NOISE**2 + (RUN_NOISE * slopes) ** 2 + noise**2
    fits = [
        _Fit.of(logs[:, key], variances[:, key], measured, measured_logs[:, key])
        for key in range(logs.shape[1])
    ]
    kernels = [
        [
            scale**2 * (shared + time_error**2 * np.outer(slopes[:, key], slopes[:, key]))
            for key in range(logs.shape[1])
        ]
        for scale in SCALES
    ]
    useless = [USELESS_OFFSET**2 + USELESS_LOCAL**2 * near] * len(fits)
    ideas = [
        _Idea.of(fits, own, loud, prior * loud_prior)
        for own, prior in [*zip(kernels, SCALE_PRIORS, strict=True), (useless, USELESS_PRIOR)]
        for loud, loud_prior in zip(NOISE_SCALES, NOISE_PRIORS, strict=True)
    ]
    odds = np.array([idea.log_odds for idea in ideas])
    odds = np.exp(odds - odds.max())
    useful = len(SCALES) * len(NOISE_SCALES)
    residuals, sigma = _mixed(fits, ideas[:useful], odds[:useful] / odds[:useful].sum())
    return Corrected(logs + residuals, sigma, float(odds[:useful].sum() / odds.sum()))


@dataclass(frozen=True, slots=True, eq=False)
class _Idea:
    """What errors and noise may be like: a kernel for each metric, and how loud the noise is."""

    kernels: Sequence[F8]
    loud: float
    log_odds: float

    @classmethod
    def of(cls, fits: Sequence[_Fit], kernels: Sequence[F8], loud: float, prior: float) -> Self:
        # Metrics of one trial err together: all of them count as one.
        evidence = [
            fit.likelihood(kernel, loud)
            for fit, kernel in zip(fits, kernels, strict=True)
            if fit.rows.size
        ]
        mean = float(np.mean(evidence)) if evidence else 0.0
        return cls(kernels, loud, mean + math.log(prior))


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """The residuals of one metric: rows of their cells, values, and variances of their noise."""

    rows: I8
    values: F8
    noise: F8

    @classmethod
    def of(cls, logs: F8, variances: F8, measured: I8, measured_logs: F8) -> Self:
        values = measured_logs - logs[measured]
        known = np.isfinite(values)
        return cls(measured[known], values[known], variances[measured[known]])

    def posterior(self, kernel: F8, loud: float) -> tuple[F8, F8]:
        """Return mean and standard deviation of every cell's residual."""
        prior = np.diag(kernel)
        if not self.rows.size:
            return np.zeros(prior.size), np.sqrt(prior)
        inner = self._inner(kernel, loud)
        across = kernel[:, self.rows]
        mean = across @ np.linalg.solve(inner, self.values)
        known = np.einsum("ij,ji->i", across, np.linalg.solve(inner, across.T))
        return mean, np.sqrt(np.maximum(prior - known, LEAST_NOISE**2 / 100))

    def likelihood(self, kernel: F8, loud: float) -> float:
        """Return the log density of the residuals, of which there have to be some."""
        inner = self._inner(kernel, loud)
        _, log_size = np.linalg.slogdet(inner)
        fit = float(self.values @ np.linalg.solve(inner, self.values))
        return -0.5 * (fit + float(log_size) + self.rows.size * math.log(2 * math.pi))

    def _inner(self, kernel: F8, loud: float) -> F8:
        noise = np.diag(loud**2 * self.noise)
        return np.asarray(kernel[np.ix_(self.rows, self.rows)] + noise)


def _mixed(fits: Sequence[_Fit], ideas: Sequence[_Idea], weights: F8) -> tuple[F8, F8]:
    """Return mean and standard deviation of all residuals, [cells, keys], over all ideas.

    With the likeliest idea alone the deviations would be too small: a few trials do not tell
    how large the errors are.
    """
    means, squares = 0.0, 0.0
    for idea, weight in zip(ideas, weights, strict=True):
        each = [
            fit.posterior(kernel, idea.loud)
            for fit, kernel in zip(fits, idea.kernels, strict=True)
        ]
        mean, sigma = (np.column_stack(columns) for columns in zip(*each, strict=True))
        means = means + weight * mean
        squares = squares + weight * (sigma**2 + mean**2)
    return np.asarray(means), np.asarray(np.sqrt(squares - np.square(means)))


def _nearness(places: F8) -> F8:
    apart = places[:, np.newaxis, :] - places[np.newaxis, :, :]
    return np.asarray(np.exp(-0.5 * (apart**2).sum(axis=2) / OCTAVES**2))
