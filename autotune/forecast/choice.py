"""Which cell to try next, by forecasts and what was measured so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.forecast.goal import Goal, Scale
from autotune.forecast.residuals import Corrected
from objectives.arrays import F8, I8, Bools

DRAWS = 128
HOPELESS = np.log(2.0)
"""Beyond this excess, even when all errors were in its favour, a cell is not tried."""

OPTIMISTIC = 1.645


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What forecasts say of all cells.

    Attributes:
        expected: [cells], mean loss.
        improvement: [cells], by how much each is expected to beat the best that was measured.
        hopeless: [cells], whether even an optimist sees twice the budget.
        best: row of the measured cell of least expected loss, None without one.
        doubts: [cells], by how much the expected loss of each differs from the loss of what is
            expected of it: large where chance decides, as next to a limit.
        trust: probability that the forecasts are of use.
    """

    expected: F8
    improvement: F8
    hopeless: Bools
    best: int | None
    doubts: F8
    trust: float


def look(corrected: Corrected, goal: Goal, *, measured: I8, seed: int) -> Outlook:
    """Weigh all cells.

    All cells share the draws, so that two of them do not differ by their luck. The improvement
    is over the least expected loss, and so is that of each cell by itself.

    Args:
        corrected: forecasts.
        goal: what is wanted of them.
        measured: rows of cells that were measured.
        seed: of the draws.
    """
    keys = corrected.logs.shape[1]
    scale = Scale.of(goal, corrected.logs)
    deviations = np.random.default_rng(seed).standard_normal((DRAWS, 1, keys))
    losses = scale.losses(corrected.logs + corrected.sigma * deviations)
    expected = losses.mean(axis=0)
    best, least = None, np.inf
    if measured.size:
        best = int(measured[np.argmin(expected[measured])])
        least = expected[best]
    improvement = np.maximum(0.0, least - losses).mean(axis=0)
    optimistic = goal.excess(corrected.logs - OPTIMISTIC * corrected.sigma)
    hopeless = optimistic > HOPELESS
    doubts = np.abs(expected - scale.losses(corrected.logs))
    return Outlook(expected, improvement, hopeless, best, doubts, corrected.trust)
