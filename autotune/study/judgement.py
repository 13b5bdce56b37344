"""The verdict of a study: which candidate, why this one, and how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from autotune.candidates.lattice import Candidate, cell_key
from autotune.study.costs import (
    Cell,
    LoadSamples,
    Noise,
    draw_costs,
    gather_cells,
    objective_names,
    replicate_noise,
)
from objectives.arrays import F8
from objectives.budget import margins, resolve, upper_margins
from objectives.classes import LengthClass
from objectives.knee import Certainty, Knee, find_knee
from objectives.limits import Budget
from objectives.score import Scores, score_cells
from objectives.statistics import Interval, student_t_95
from storage.records import TrialRecord

Code = Literal["knee", "keep_default", "nothing_feasible", "not_converged"]

CONVERGED_COST = 0.03
"""Expected opportunity cost, in widths of the budget, up to which a knee counts as found."""


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What the trials so far say.

    Attributes:
        code: the verdict.
        budget: with relative limits resolved.
        names: of the objectives.
        cells: all measured candidates.
        winner: index of the cell to deploy, None if nothing is feasible.
        nearest: without a winner, the cell that misses the budget by the least.
        baseline: index of the baseline's cell, None if it was not measured.
        knee: with its neighbours and its certainty, None without a feasible cell.
        scores: of the cells.
        gain: score of the baseline minus score of the winner, with its bounds.
        noise: of each objective between trials of one cell, None without replicates.
        kept: whether the upper bounds of the winner keep the budget too; None where the window
            is too short for such a bound, or there is no budget.
    """

    code: Code
    budget: Budget
    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    winner: int | None
    nearest: int | None
    baseline: int | None
    knee: Knee | None
    scores: Scores
    gain: tuple[float, Interval] | None
    noise: Noise | None
    kept: bool | None

    @property
    def chosen(self) -> Cell | None:
        return None if self.winner is None else self.cells[self.winner]

    @property
    def certainty(self) -> Certainty | None:
        return None if self.knee is None else self.knee.certainty


def judge(
    trials: Sequence[TrialRecord],
    load_samples: LoadSamples,
    *,
    budget: Budget,
    classes: Sequence[LengthClass],
    baseline: Candidate,
) -> Judgement | None:
    """Return the judgement over all complete trials, None if there is none yet.

    Raises:
        ObjectiveError: a relative limit, and the baseline was not measured.
    """
    complete = [trial for trial in trials if trial.state == "complete"]
    if not complete:
        return None
    names = objective_names(budget)
    own = [t for t in complete if cell_key(t.candidate) == cell_key(baseline)]
    absolute = resolve(budget, (own[0].metrics or {}) if own else {})
    cells = gather_cells(complete, absolute, names)
    keys = [cell_key(cell.candidate) for cell in cells]
    base = keys.index(cell_key(baseline)) if own else None
    costs = np.stack([cell.costs for cell in cells])
    feasible = np.array([cell.feasible for cell in cells])
    noise = replicate_noise(cells)
    sigma = None if noise is None else noise.sigma
    scores = score_cells(costs, feasible, _anchors(absolute, names), sigma)
    draws = draw_costs(cells, load_samples, names, classes, noise)
    knee = find_knee(costs, feasible, scores, draws=draws)
    gain = None
    if knee is not None and base is not None:
        gain = _gain(scores, draws, base, knee.cell)
    code: Code = (
        "not_converged"
        if feasible.sum() and len(cells) == 1
        else _code(knee, base, feasible, gain, _noise_of_gain(scores, noise, cells, knee, base))
    )
    winner = base if code == "keep_default" else (None if knee is None else knee.cell)
    return Judgement(
        code=code,
        budget=absolute,
        names=names,
        cells=tuple(cells),
        winner=winner,
        nearest=_nearest(absolute, cells) if winner is None else None,
        baseline=base,
        knee=knee,
        scores=scores,
        gain=gain,
        noise=noise,
        kept=None if winner is None else _kept(absolute, cells[winner]),
    )


def _anchors(budget: Budget, names: Sequence[str]) -> F8:
    """Return the strictest limit of each objective, NaN where there is none."""
    limits = [
        [limit.limit_ms for limit in budget.limits if limit.key == name and limit.limit_ms]
        for name in names
    ]
    return np.array([min(found) if found else math.nan for found in limits])


def _gain(scores: Scores, draws: F8, baseline: int, knee: int) -> tuple[float, Interval]:
    drawn = scores.of(draws)
    with np.errstate(invalid="ignore"):
        gains = drawn[:, baseline] - drawn[:, knee]
        estimate = float(scores.values[baseline] - scores.values[knee])
    known = gains[np.isfinite(gains)]
    if not known.size or not math.isfinite(estimate):
        return estimate, Interval(None, None)
    low, high = np.quantile(known, [0.05, 0.95])
    return estimate, Interval(float(low), float(high))


def _noise_of_gain(
    scores: Scores, noise: Noise | None, cells: Sequence[Cell], knee: Knee | None, base: int | None
) -> float | None:
    """Return the gain that noise alone stays below 95 times in 100; None without replicates."""
    if noise is None or knee is None or base is None or not scores.used.any():
        return None
    widths = np.log(scores.anchor / scores.ideal)
    of_score = math.sqrt(np.nansum((noise.sigma / widths)[scores.used] ** 2)) / scores.used.sum()
    repeats = 1 / len(cells[base].numbers) + 1 / len(cells[knee.cell].numbers)
    return float(student_t_95(noise.degrees) * of_score * math.sqrt(repeats))


def _code(
    knee: Knee | None,
    base: int | None,
    feasible: np.ndarray[Any, np.dtype[np.bool_]],
    gain: tuple[float, Interval] | None,
    within: float | None,
) -> Code:
    if knee is None:
        return "nothing_feasible"
    if base is not None and feasible[base] and gain is not None:
        estimate, bounds = gain
        within_noise = within is not None and estimate <= within
        if knee.cell == base or within_noise or (bounds.low is not None and bounds.low <= 0):
            return "keep_default"
    cost = math.inf if knee.certainty is None else knee.certainty.expected_opportunity_cost
    return "knee" if cost <= CONVERGED_COST else "not_converged"


def _kept(budget: Budget, cell: Cell) -> bool | None:
    if not budget.limits:
        return None
    bounds = {name: Interval(*pair) for name, pair in cell.intervals.items()}
    upper = list(upper_margins(budget, bounds).values())
    if any(value is None for value in upper):
        return None
    return all(value is not None and value <= 0 for value in upper)


def _nearest(budget: Budget, cells: Sequence[Cell]) -> int:
    """Return the cell whose worst limit is broken by the least."""

    def worst(cell: Cell) -> float:
        values = margins(budget, cell.metrics).values()
        broken = max((math.inf if value is None else value for value in values), default=0.0)
        return math.inf if cell.failed_requests else broken

    return int(np.argmin([worst(cell) for cell in cells]))


def verdict_json(judgement: Judgement) -> dict[str, Any]:
    """Return a judgement as it is stored with the study and shown in JSON."""
    certainty = judgement.certainty
    chosen = judgement.chosen
    gain = judgement.gain
    return {
        "code": judgement.code,
        "candidate": None if chosen is None else dict(chosen.candidate),
        "trials": [] if chosen is None else list(chosen.numbers),
        "nearest": None
        if judgement.nearest is None
        else dict(judgement.cells[judgement.nearest].candidate),
        "kept": judgement.kept,
        "probability": None
        if certainty is None or judgement.winner is None
        else float(certainty.probability[judgement.winner]),
        "knee_set": []
        if certainty is None
        else [dict(judgement.cells[cell].candidate) for cell in certainty.knee_set],
        "expected_opportunity_cost": None
        if certainty is None
        else certainty.expected_opportunity_cost,
        "regret_bound": None if certainty is None else certainty.regret_bound,
        "gain": None
        if gain is None
        else {"score": gain[0], "low": gain[1].low, "high": gain[1].high},
        "objectives_used": [
            name for name, used in zip(judgement.names, judgement.scores.used, strict=True) if used
        ],
        "noise": None
        if judgement.noise is None
        else _named(judgement.names, judgement.noise.sigma),
        "pronounced": None if judgement.knee is None else judgement.knee.pronounced,
    }


def _named(names: Sequence[str], values: F8) -> Mapping[str, float]:
    return {n: float(v) for n, v in zip(names, values, strict=True) if math.isfinite(v)}
