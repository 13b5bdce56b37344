"""What a forecast is worth: the study's score, and how far a budget would be missed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from objectives.arrays import F8, I8
from objectives.limits import Budget
from objectives.score import Scores, score_cells

MOST_EXCESS = 5.0
_LINEAR = 0.9
"""Up to where losses are scores; beyond they approach 1, where those of missed budgets begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """Which of some metrics are costs, and which have limits.

    Attributes:
        costs: [objectives], columns of the metrics that are scored.
        signs: [objectives], -1 where more is better, else 1.
        limits: [limits], columns of the metrics with limits.
        log_limits: [limits].
        anchors: [objectives], log of the limit of each cost, NaN where there is none.
    """

    costs: I8
    signs: F8
    limits: I8
    log_limits: F8
    anchors: F8

    @classmethod
    def of(cls, budget: Budget, keys: Sequence[str], costs: Sequence[str]) -> Self:
        """Return the goal of a study.

        Args:
            budget: with absolute limits only, one of a metric.
            keys: of the metrics, in their order.
            costs: the keys that are scored, the work last, of which more is better.
        """
        found = [(limit.key, limit.limit_ms) for limit in budget.limits]
        logs = {key: math.log(limit_ms) for key, limit_ms in found if limit_ms}
        return cls(
            costs=np.array([keys.index(name) for name in costs]),
            signs=np.array([1.0] * (len(costs) - 1) + [-1.0]),
            limits=np.array([keys.index(name) for name in logs], dtype=np.int64),
            log_limits=np.array(list(logs.values())),
            anchors=np.array([logs.get(name, math.nan) for name in costs]),
        )

    def excess(self, logs: F8) -> F8:
        """Return [...], by how much the worst limit is missed, as a log; 0 where all are kept.

        Args:
            logs: [..., keys], of metrics; what is not finite misses its limit.
        """
        if not self.limits.size:
            return np.zeros(logs.shape[:-1])
        over = logs[..., self.limits] - self.log_limits
        worst = np.nan_to_num(over, nan=MOST_EXCESS, posinf=MOST_EXCESS).max(axis=-1)
        return np.asarray(np.clip(worst, 0.0, MOST_EXCESS))


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """A goal with the scale on which scores are told; see ``objectives.score``."""

    goal: Goal
    scores: Scores

    @classmethod
    def of(cls, goal: Goal, logs: F8) -> Self:
        """Return the scale of cells, [cells, keys]: by the best of those that keep the budget."""
        kept = goal.excess(logs) == 0
        return cls(goal, score_cells(_costs(goal, logs), kept, np.exp(goal.anchors)))

    def losses(self, logs: F8) -> F8:
        """Return [...], below 1 where the budget is kept, else 1 and what is missed.

        The score up to 0.9, and closer and closer to 1 beyond: however bad a cell is in what has
        no limit, it does not lose to one that breaks the budget. An objective of which no cell
        has a value does not count.

        Args:
            logs: [..., keys], of metrics.
        """
        goal, scores = self.goal, self.scores
        z = np.nan_to_num(scores.z(_costs(goal, logs)), posinf=MOST_EXCESS)
        score = z.sum(axis=-1) / max(1, int(scores.used.sum()))
        excess = goal.excess(logs)
        beyond = np.maximum(0.0, score - _LINEAR)
        kept = np.minimum(score, _LINEAR) - (1 - _LINEAR) * np.expm1(-beyond / (1 - _LINEAR))
        return np.asarray(np.where(excess > 0, 1.0 + excess, kept))


def _costs(goal: Goal, logs: F8) -> F8:
    return np.asarray(np.exp(goal.signs * logs[..., goal.costs]))
