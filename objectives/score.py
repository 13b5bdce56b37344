"""One figure per cell from several objectives: how far from ideal, in widths of the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from objectives.arrays import F8, Bools
from objectives.errors import ObjectiveError

# Without a budget an objective is judged on the way from its ideal to this multiple of it.
_ANCHOR_WITHOUT_BUDGET = 2.0
# A budget closer to the ideal than this would blow differences of noise up.
_LEAST_WIDTH = math.log(1.25)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores of cells and the scale that they were measured on.

    Attributes:
        values: [cells]; 0 is ideal in everything, 1 at the anchor of everything, inf where an
            objective that counts is infinite or not measured.
        ideal: [objectives], the best feasible cost; inf where there is none.
        anchor: [objectives], the cost that has z = 1: the budget, without one twice the
            ideal, at least 1.25 times the ideal.
        used: [objectives], whether the objective counts. It does not if all feasible cells
            lie within its noise, nor if it was never measured.
    """

    values: F8
    ideal: F8
    anchor: F8
    used: Bools

    def z(self, costs: F8) -> F8:
        """Return ln(cost / ideal) / ln(anchor / ideal) for costs [..., objectives].

        0 for objectives that do not count; inf for NaN (not measured).
        """
        known = np.where(np.isnan(costs), np.inf, costs)
        result = np.zeros(known.shape)
        ideal, anchor = self.ideal[self.used], self.anchor[self.used]
        with np.errstate(divide="ignore"):
            distance = np.log(known[..., self.used] / ideal)
        result[..., self.used] = distance / np.log(anchor / ideal)
        return result

    def of(self, costs: F8) -> F8:
        """Return the scores of any costs [..., objectives] on this scale.

        The mean of z over the objectives that count; 0 if none does, since then nothing
        tells the cells apart.
        """
        total: F8 = self.z(costs).sum(axis=-1) / max(1, int(self.used.sum()))
        return total


def score_cells(
    costs: F8,
    feasible: Bools,
    budgets: F8 | None = None,
    noise: F8 | None = None,
) -> Scores:
    """Score cells by the mean of z = ln(f / ideal) / ln(anchor / ideal) over the objectives.

    Logs, because ratios are what users judge; anchored at the budget, because a scale taken
    from the worst cell seen would move with every bad cell that is tried.

    Args:
        costs: [cells, objectives], to be minimised (a utilization u as 1/u); inf allowed, NaN
            where not measured.
        feasible: [cells]. If no cell is, the ideal is taken over all, so that the scores
            still say which cell is nearest.
        budgets: [objectives], NaN where there is no limit; None: no limits.
        noise: [objectives], the replicate noise in log units. An objective in which two or
            more feasible cells spread by less is left out. NaN or None: unknown, it stays.

    Raises:
        ObjectiveError: shapes that do not fit, or costs that are not positive.
    """
    objectives = _checked(costs, feasible)
    limits = np.full(objectives, np.nan) if budgets is None else budgets
    sigma = np.zeros(objectives) if noise is None else np.where(np.isnan(noise), 0.0, noise)
    if limits.shape != (objectives,) or sigma.shape != (objectives,):
        raise ObjectiveError(f"expected one budget and one noise for {objectives} objectives.")
    known = np.where(np.isnan(costs), np.inf, costs)
    compared = known[feasible] if feasible.any() else known
    ideal = compared.min(axis=0, initial=np.inf)
    spread = _log_spread(compared, ideal)
    # A single cell has no spread to compare with the noise.
    tells_apart = (spread >= sigma) | (len(compared) < 2)
    used = np.isfinite(ideal) & tells_apart
    anchor = np.where(np.isnan(limits), _ANCHOR_WITHOUT_BUDGET * ideal, limits)
    anchor = np.maximum(anchor, ideal * math.exp(_LEAST_WIDTH))
    scale = Scores(np.zeros(0), ideal, anchor, used)
    return Scores(scale.of(costs), ideal, anchor, used)


def _checked(costs: F8, feasible: Bools) -> int:
    """Return the number of objectives."""
    if costs.ndim != 2 or feasible.shape != costs.shape[:1]:
        raise ObjectiveError(
            f"costs {costs.shape} and feasible {feasible.shape} do not fit together."
        )
    if (costs <= 0).any():
        raise ObjectiveError("costs must be positive: they are compared by their ratios.")
    return int(costs.shape[1])


def _log_spread(compared: F8, ideal: F8) -> F8:
    """ln(worst / best) per objective; 0 where nothing is finite."""
    worst = compared.max(axis=0, initial=0.0)
    spread = np.zeros(ideal.size)
    finite = np.isfinite(ideal)
    spread[finite] = np.log(worst[finite] / ideal[finite])
    return spread
