"""What the winner gains on the baseline, metric by metric, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.candidates.lattice import cell_key
from autotune.study.costs import (
    WORK_COST,
    Cell,
    LoadSamples,
    draw_costs,
    gather_cells,
    replicate_noise,
    work_metric,
)
from autotune.study.counted import counted_trials
from autotune.study.view import StudyView
from objectives.arrays import F8
from objectives.classes import parse_classes


@dataclass(frozen=True, slots=True)
class Gain:
    """One metric of the winner beside the baseline's.

    Attributes:
        name: of the metric; latencies are in ms.
        baseline, winner: means over the trials; None where there is nothing to measure.
        change: of the winner relative to the baseline, -0.2 being a fifth less; None where it
            has no finite value.
        low, high: the ends of the change's 90 % interval, None where it has none.
    """

    name: str
    baseline: float | None
    winner: float | None
    change: float | None
    low: float | None
    high: float | None


def gains_of(view: StudyView, load_samples: LoadSamples) -> list[Gain]:
    """Return the gain in each metric of the budget, in those that are scored, and in work.

    Resampled as the verdict is (``draw_costs``). Empty without a winner or a baseline, or where
    they are the same.

    Args:
        view: a judged study.
        load_samples: of its trials.
    """
    judgement = view.judgement
    if judgement is None or judgement.chosen is None or judgement.baseline is None:
        return []
    if judgement.winner == judgement.baseline:
        return []
    pair = (judgement.cells[judgement.baseline], judgement.chosen)
    keys = [limit.key for limit in judgement.budget.limits]
    names = [*dict.fromkeys((*keys, *judgement.names[:-1])), WORK_COST]
    draws = _draws(view, pair, names, load_samples)
    work = work_metric([cell.metrics for cell in pair])
    found = []
    for column, name in enumerate(names):
        ratios = _ratios(draws, column)
        own = work if name == WORK_COST else name
        # Work is the reciprocal of its cost.
        found.append(_gain(own, pair, 1 / ratios if name == WORK_COST else ratios))
    return found


def _draws(
    view: StudyView, pair: tuple[Cell, Cell], names: Sequence[str], load_samples: LoadSamples
) -> F8:
    """Return resampled costs of the two, [resamples, 2, names]."""
    judgement, study = view.judgement, view.study
    classes = parse_classes(study.spec["classes"])
    if judgement is None:
        raise ValueError("a study without a judgement has no costs")
    trials = counted_trials(view.trials, judgement.budget, study.fingerprint["baseline"], classes)
    cells = gather_cells(trials, judgement.budget, names)
    by_key = {cell_key(cell.candidate): cell for cell in cells}
    both = [by_key[cell_key(cell.candidate)] for cell in pair]
    return draw_costs(both, load_samples, names, classes, replicate_noise(cells))


def _ratios(draws: F8, column: int) -> F8:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios: F8 = draws[:, 1, column] / draws[:, 0, column]
    return ratios[np.isfinite(ratios) & (ratios > 0)]


def _gain(name: str, pair: tuple[Cell, Cell], ratios: F8) -> Gain:
    old, new = (cell.metrics.get(name) for cell in pair)
    change = None
    if old and new is not None and math.isfinite(old) and math.isfinite(new):
        change = new / old - 1
    low = high = None
    if change is not None and ratios.size and float(np.ptp(ratios)) > 0:
        low, high = (float(end) - 1 for end in np.quantile(ratios, [0.05, 0.95]))
    return Gain(name, old, new, change, low, high)
