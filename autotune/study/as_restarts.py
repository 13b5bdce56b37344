"""What restarts of cells that were measured live only would cost, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.study.costs import Cell, Noise
from objectives.arrays import F8

_SEED = 1
"""Fixed, so that the same trials always give the same verdict; not the one of the noise."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveShift:
    """By how much the log costs of restarts exceed those of live trials.

    Attributes:
        offset: [objectives], the mean over the candidates that were measured both ways; 0 where
            none was.
        error: [objectives], its standard error, shared by all cells.
        spread: [objectives], by how much that differs between candidates beyond the noise of
            their trials, as a standard deviation; 0 where fewer than two were measured both ways.
    """

    offset: F8
    error: F8
    spread: F8


def live_shift(cells: Sequence[Cell], noise: Noise | None) -> LiveShift:
    """Compare the cells that were measured both ways.

    The spread is the moment estimate of DerSimonian and Laird (1986, Controlled Clinical Trials
    7), with equal weights: the variance of the shifts less that of the noise in them.
    """
    objectives = cells[0].costs.size
    both = [cell for cell in cells if not cell.live and len(cell.live_log_costs)]
    if not both:
        return LiveShift(*np.zeros((3, objectives)))
    with np.errstate(invalid="ignore"):  # Both may be infinite.
        shifts = np.array([c.log_costs.mean(axis=0) - c.live_log_costs.mean(axis=0) for c in both])
    known = np.isfinite(shifts)
    counts = np.maximum(1, known.sum(axis=0))
    shifts = np.where(known, shifts, 0.0)
    offset = shifts.sum(axis=0) / counts
    sigma = np.zeros(objectives) if noise is None else np.nan_to_num(noise.sigma)
    repeats = np.array([1 / len(c.log_costs) + 1 / len(c.live_log_costs) for c in both])
    by_noise = sigma**2 * (known * repeats[:, np.newaxis]).sum(axis=0) / counts
    squares = np.where(known, (shifts - offset) ** 2, 0.0).sum(axis=0)
    beyond = squares / np.maximum(1, counts - 1) - by_noise
    spread = np.where(counts > 1, np.sqrt(np.maximum(0.0, beyond)), 0.0)
    return LiveShift(offset, np.sqrt((by_noise + spread**2) / counts), spread)


def as_restarts(draws: F8, cells: Sequence[Cell], noise: Noise | None) -> F8:
    """Return draws in which cells measured live only cost what restarts of them may.

    Args:
        draws: [resamples, cells, objectives], of the costs as measured.
        cells: whose they are.
        noise: between trials of one cell, None where it is not known.
    """
    live = np.array([cell.live for cell in cells])
    if not live.any():
        return draws
    shift = live_shift(cells, noise)
    chances = np.random.default_rng(_SEED)
    shared = shift.error * chances.standard_normal((len(draws), 1, shift.error.size))
    own = shift.spread * chances.standard_normal(draws.shape)
    factors = np.exp(shift.offset + shared + own)
    return np.asarray(np.where(live[:, np.newaxis], draws * factors, draws))
