"""The best candidate so far, as programs and messages are told of it."""

from __future__ import annotations

import math
from typing import Any

from autotune.study.costs import RATE, UTILIZATION, WORK_COST, Cell
from autotune.study.judgement import Judgement


def best_json(judgement: Judgement) -> dict[str, Any] | None:
    """Return what would be deployed by the trials so far; None if nothing keeps the budget."""
    chosen = judgement.chosen
    if chosen is None:
        return None
    return {**cell_json(judgement, chosen), "gain": _gain(judgement), "verdict": judgement.code}


def unconfirmed_json(judgement: Judgement) -> dict[str, Any] | None:
    """Return a better one that was only measured live, None if there is none."""
    if judgement.unconfirmed is None:
        return None
    return cell_json(judgement, judgement.cells[judgement.unconfirmed])


def cell_json(judgement: Judgement, cell: Cell) -> dict[str, Any]:
    """Return a candidate with its trials and the metrics that the budget names.

    Without a budget, those that are scored.
    """
    named = dict.fromkeys(limit.key for limit in judgement.budget.limits)
    work = UTILIZATION if UTILIZATION in cell.metrics else RATE
    scored = [work if name == WORK_COST else name for name in judgement.names]
    return {
        "candidate": dict(cell.candidate),
        "trials": list(cell.numbers),
        "metrics": {key: finite(cell.metrics.get(key)) for key in named or scored},
    }


def _gain(judgement: Judgement) -> dict[str, float | None] | None:
    """Return the gain of the winner over the baseline, None where it is that or not the knee."""
    knee, gain = judgement.knee, judgement.gain
    if gain is None or knee is None or knee.cell != judgement.winner:
        return None
    if judgement.winner == judgement.baseline:
        return None
    estimate, bounds = gain
    return {"score": finite(estimate), "low": finite(bounds.low), "high": finite(bounds.high)}


def finite(value: float | None) -> float | None:
    """Return a number as JSON may have it, None if it has no such."""
    return value if value is not None and math.isfinite(value) else None
