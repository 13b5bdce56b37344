"""How far forecasts are off, learnt from the trials so far, and whether they are of any use.

The log of measured over forecast is taken as a Gaussian process over the lattice: an offset that
all cells share, an error of all step times that works on each cell by its slope, and a part that
neighbours share (Rasmussen and Williams, 2006, Gaussian Processes for Machine Learning, 2.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from objectives.arrays import F8, I8

OFFSET = 0.05
LOCAL = 0.06
OCTAVES = 1.5
"""Standard deviations of the shared offset and the local part of the error of a useful model, in
logs, and the octaves of a limit over which the local part changes."""

USELESS_OFFSET = 0.7
USELESS_LOCAL = 0.7
"""The same of forecasts that tell nothing."""

LEAST_NOISE = 0.015
PRIOR = 0.95
"""Probability that a model is useful before anything was measured."""


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
    places: F8,
    *,
    measured: I8,
    measured_logs: F8,
    time_error: float,
    noise: float = LEAST_NOISE,
) -> Corrected:
    """Correct forecasts by what was measured.

    Args:
        logs: [cells, keys], forecast.
        slopes: [cells, keys], by how much they grow with the log of all step times.
        places: [cells, axes], where each cell is, in octaves.
        measured: [trials], rows of cells that were measured; one may come again.
        measured_logs: [trials, keys]; what is not finite says nothing.
        time_error: relative standard error of the step times.
        noise: between trials of one cell, as a standard deviation of logs.
    """
    near = _nearness(places)
    corrected, sigma = np.array(logs), np.zeros_like(logs)
    evidence = 0.0
    for key in range(logs.shape[1]):
        useful = OFFSET**2 + LOCAL**2 * near
        useful = useful + time_error**2 * np.outer(slopes[:, key], slopes[:, key])
        residuals = measured_logs[:, key] - logs[measured, key]
        known = np.isfinite(residuals)
        rows, residuals = measured[known], residuals[known]
        mean, sigma[:, key] = _posterior(useful, rows, residuals, noise)
        corrected[:, key] += mean
        useless = USELESS_OFFSET**2 + USELESS_LOCAL**2 * near
        evidence += _likelihood(useless, rows, residuals, noise)
        evidence -= _likelihood(useful, rows, residuals, noise)
    # Metrics of one trial err together: they count as one.
    odds = (1 - PRIOR) / PRIOR * math.exp(min(700.0, evidence / max(1, logs.shape[1])))
    return Corrected(corrected, sigma, 1 / (1 + odds))


def _nearness(places: F8) -> F8:
    apart = places[:, np.newaxis, :] - places[np.newaxis, :, :]
    return np.asarray(np.exp(-0.5 * (apart**2).sum(axis=2) / OCTAVES**2))


def _posterior(kernel: F8, rows: I8, residuals: F8, noise: float) -> tuple[F8, F8]:
    """Return mean and standard deviation of every cell's residual."""
    prior = np.sqrt(np.diag(kernel))
    if not rows.size:
        return np.zeros(prior.size), prior
    inner = kernel[np.ix_(rows, rows)] + noise**2 * np.eye(rows.size)
    across = kernel[:, rows]
    mean = across @ np.linalg.solve(inner, residuals)
    taken = np.einsum("ij,ji->i", across, np.linalg.solve(inner, across.T))
    return mean, np.sqrt(np.maximum(prior**2 - taken, (noise / 10) ** 2))


def _likelihood(kernel: F8, rows: I8, residuals: F8, noise: float) -> float:
    """Return the log density of the residuals."""
    if not rows.size:
        return 0.0
    inner = kernel[np.ix_(rows, rows)] + noise**2 * np.eye(rows.size)
    _, log_size = np.linalg.slogdet(inner)
    fit = float(residuals @ np.linalg.solve(inner, residuals))
    return -0.5 * (fit + float(log_size) + rows.size * math.log(2 * math.pi))
