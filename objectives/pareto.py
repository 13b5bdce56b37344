"""Which cells are worth a look: those that no other beats in everything."""

from __future__ import annotations

import numpy as np

from objectives.arrays import F8, Bools


def non_dominated(costs: F8, feasible: Bools | None = None) -> Bools:
    """Return which cells no feasible cell dominates.

    A cell dominates another if it is no worse in every objective and better in one, so equal
    cells stay together. Infinite costs are allowed; NaN (not measured) counts as infinite.

    Args:
        costs: [cells, objectives], to be minimised.
        feasible: [cells]; infeasible cells are never returned and dominate nothing.
    """
    values = np.where(np.isnan(costs), np.inf, costs)
    allowed = np.ones(len(values), dtype=np.bool_) if feasible is None else feasible
    mine, others = values[:, None, :], values[None, allowed, :]
    dominates = np.all(others <= mine, axis=2) & np.any(others < mine, axis=2)
    dominated: Bools = np.any(dominates, axis=1)
    return allowed & ~dominated
