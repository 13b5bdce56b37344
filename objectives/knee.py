"""The knee: the cell past which one objective gains little and another gets much worse."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from objectives.arrays import F8, Bools
from objectives.errors import ObjectiveError
from objectives.pareto import non_dominated
from objectives.score import Scores

PRONOUNCED_RATIO = 1.5

_COVERAGE = 0.9
_REGRET_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class TradeOff:
    """What moving from the knee to a neighbour on the front costs.

    Attributes:
        neighbour: the cell moved to.
        changes: relative change of each objective's cost: −0.2 is 20 % less, 0.5 half as much
            again; inf where the neighbour's cost is infinite.
        ratio: loss per unit of gain, both summed over z; at least 1, inf if nothing is gained.
    """

    neighbour: int
    changes: tuple[float, ...]
    ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class Certainty:
    """What resampling says about the knee.

    Attributes:
        probability: [cells], share of the draws in which the cell is the best feasible one;
            ties are shared out.
        knee_set: the fewest cells that together are the knee in 90 % of the draws, likeliest
            first.
        expected_opportunity_cost: mean over draws of score(knee) − best score.
        regret_bound: its 95th percentile.
    """

    probability: F8
    knee_set: tuple[int, ...]
    expected_opportunity_cost: float
    regret_bound: float


@dataclass(frozen=True, slots=True, eq=False)
class Knee:
    """The feasible non-dominated cell of least score.

    Attributes:
        cell: its index.
        score: its score.
        front: [cells], which cells are feasible and not dominated.
        faster: trade-off to the nearest cell of the front that is better in the leading
            objective, the first that counts; None at that end of the front.
        slower: the same for the cells that are no better in it.
        certainty: None without draws.
    """

    cell: int
    score: float
    front: Bools
    faster: TradeOff | None
    slower: TradeOff | None
    certainty: Certainty | None

    @property
    def trade_offs(self) -> tuple[TradeOff, ...]:
        """The trade-offs that exist, towards the better leading objective first."""
        return tuple(each for each in (self.faster, self.slower) if each is not None)

    @property
    def pronounced(self) -> bool:
        """False if the front is nearly linear here: each move loses less than 1.5 per gain.

        A front of one cell is its own knee, and as pronounced as can be.
        """
        ratios = [each.ratio for each in self.trade_offs]
        return not ratios or max(ratios) >= PRONOUNCED_RATIO


def find_knee(
    costs: F8, feasible: Bools, scores: Scores, *, draws: F8 | None = None
) -> Knee | None:
    """Return the knee among the measured cells, None if no cell is feasible and scored.

    On a scale of logs anchored at the budget, the least mean of z is the point of the front
    that bulges furthest towards the ideal: the knee of Das (1999, Structural Optimization 18)
    with equal weights. Of equal scores the first cell wins.

    Args:
        costs: [cells, objectives], as scored.
        feasible: [cells].
        scores: from ``score_cells`` over the same cells.
        draws: [resamples, cells, objectives], replicates of the costs by bootstrap, paired
            between cells. They are scored on the scale of ``scores``; which cells are
            feasible stays as given.

    Raises:
        ObjectiveError: draws of another shape.
    """
    front = non_dominated(costs, feasible)
    eligible = np.flatnonzero(front & np.isfinite(scores.values))
    if not eligible.size:
        return None
    cell = int(eligible[np.argmin(scores.values[eligible])])
    faster, slower = _neighbours(cell, costs, front, scores)
    return Knee(
        cell=cell,
        score=float(scores.values[cell]),
        front=front,
        faster=faster,
        slower=slower,
        certainty=None if draws is None else assess(draws, feasible, scores, cell),
    )


def assess(draws: F8, feasible: Bools, scores: Scores, cell: int) -> Certainty:
    """Judge a feasible cell, the knee or another, by draws as in ``find_knee``."""
    if draws.ndim != 3 or draws.shape[1:] != (feasible.size, scores.ideal.size):
        raise ObjectiveError(
            f"draws have shape {draws.shape}, expected (resamples, {feasible.size},"
            f" {scores.ideal.size})."
        )
    if not (draws.shape[0] and feasible[cell]):
        raise ObjectiveError("a cell is judged by at least one draw, and must be feasible.")
    drawn = np.where(feasible, scores.of(draws), np.inf)
    best = drawn.min(axis=1)
    wins = (drawn == best[:, None]) & feasible
    probability: F8 = (wins / wins.sum(axis=1, keepdims=True)).mean(axis=0)
    regret = np.zeros(best.size)
    worse = drawn[:, cell] > best
    regret[worse] = drawn[worse, cell] - best[worse]
    return Certainty(
        probability=probability,
        knee_set=_smallest_set(probability),
        expected_opportunity_cost=float(regret.mean()),
        regret_bound=float(np.quantile(regret, _REGRET_QUANTILE, method="higher")),
    )


def _smallest_set(probability: F8) -> tuple[int, ...]:
    order = np.argsort(-probability, kind="stable")
    covered = np.cumsum(probability[order])
    # The tolerance keeps rounding in the sum from adding a cell.
    count = int(np.searchsorted(covered, _COVERAGE - 1e-9)) + 1
    return tuple(int(cell) for cell in order[:count])


def _neighbours(
    cell: int, costs: F8, front: Bools, scores: Scores
) -> tuple[TradeOff | None, TradeOff | None]:
    """The nearest other cells of the front on both sides of the leading objective."""
    leading = int(np.argmax(scores.used))
    others = front & np.isfinite(scores.values) & (costs != costs[cell]).any(axis=1)
    better = others & (costs[:, leading] < costs[cell, leading])
    z = scores.z(costs)

    def towards(side: Bools) -> TradeOff | None:
        cells = np.flatnonzero(side)
        if not cells.size:
            return None
        distance = np.abs(z[cells] - z[cell]).sum(axis=1)
        return _trade_off(cell, int(cells[np.argmin(distance)]), costs, z)

    return towards(better), towards(others & ~better)


def _trade_off(cell: int, neighbour: int, costs: F8, z: F8) -> TradeOff:
    step = z[neighbour] - z[cell]
    loss, gain = float(step[step > 0].sum()), float(-step[step < 0].sum())
    without_gain = math.inf if loss > 0 else 1.0
    ratio = loss / gain if gain > 0 else without_gain
    return TradeOff(neighbour, _changes(costs[cell], costs[neighbour]), ratio)


def _changes(old: F8, new: F8) -> tuple[float, ...]:
    """Relative changes; 0 where both are infinite."""
    return tuple(0.0 if a == b else float(b / a - 1) for a, b in zip(old, new, strict=True))
