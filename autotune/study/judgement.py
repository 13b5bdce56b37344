"""The verdict of a study: which candidate, why this one, and how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from autotune.candidates.lattice import Candidate, cell_key
from autotune.study.as_restarts import as_restarts, live_shift
from autotune.study.costs import (
    Cell,
    LoadSamples,
    Noise,
    draw_costs,
    gather_cells,
    objective_names,
    replicate_noise,
)
from autotune.study.counted import counted_trials, cut_short, is_restart_of, loosened
from autotune.study.drift import Steadiness, assess_steadiness
from objectives.arrays import F8, Bools
from objectives.budget import margins, resolve, upper_margins
from objectives.classes import LengthClass
from objectives.knee import Certainty, Knee, assess, find_knee
from objectives.limits import Budget
from objectives.pareto import non_dominated
from objectives.score import Scores, score_cells
from objectives.statistics import Interval, student_t_95
from storage.records import TrialRecord

Code = Literal["knee", "keep_default", "nothing_feasible", "not_converged"]

CONVERGED_COST = 0.03
"""Expected opportunity cost, in widths of the budget, up to which a knee counts as found."""

KEEPING_COST = 2 * CONVERGED_COST
"""The same of a baseline that nothing is shown to beat by more than ``CONVERGED_COST``: a default
needs no reason, and a change does."""

ALONE_AFTER = 4
"""Other candidates that broke the budget after which a baseline that keeps it is no longer just
the first that was tried."""


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
        loosened: without a winner, a budget that the nearest cell keeps, None if there is none.
        baseline: index of the baseline's cell, None if it was not measured.
        knee: with its neighbours, None without a feasible cell.
        certainty: of the winner, among all that keep the budget: those measured live only as
            restarts of them may turn out. None without a winner.
        scores: of the cells.
        gain: score of the baseline minus score of the winner, with its bounds.
        noise: of each objective between trials of one cell, None without replicates.
        too_noisy: not converged since repeats differ by more than the baseline and the best do.
        kept: whether the upper bounds of the winner keep the budget too; None where the window
            is too short for such a bound, or there is no budget.
        unconfirmed: the best cell that was measured live only, where a restart of it might
            change the verdict, which is ``not_converged`` then; else None.
        steadiness: what repeats say of machine and method.
    """

    code: Code
    budget: Budget
    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    winner: int | None
    nearest: int | None
    loosened: Budget | None
    baseline: int | None
    knee: Knee | None
    certainty: Certainty | None
    scores: Scores
    gain: tuple[float, Interval] | None
    noise: Noise | None
    too_noisy: bool
    kept: bool | None
    unconfirmed: int | None = None
    steadiness: Steadiness = field(default_factory=Steadiness)

    @property
    def chosen(self) -> Cell | None:
        """The cell to deploy; one that restarts have measured."""
        return None if self.winner is None else self.cells[self.winner]


@dataclass(frozen=True, slots=True, eq=False)
class _Ruling:
    """A code, the cell to deploy and how sure that is; see ``Judgement``."""

    code: Code
    winner: int | None = None
    certainty: Certainty | None = None
    too_noisy: bool = False
    unconfirmed: int | None = None


def judge(
    trials: Sequence[TrialRecord],
    load_samples: LoadSamples,
    *,
    budget: Budget,
    classes: Sequence[LengthClass],
    baseline: Candidate,
) -> Judgement | None:
    """Return the judgement over all trials that the budget counts, None if there is none yet.

    Only cells that restarts have measured may win; the others belong to the scale that all are
    scored on, to the front, and to those that the winner may lose against. It follows from these
    arguments alone: not from the states that earlier budgets left the trials in, nor from their
    order of judging.

    Raises:
        ObjectiveError: a relative limit, and the baseline was not measured.
    """
    complete = counted_trials(trials, budget, baseline, classes)
    names = objective_names(budget)
    own = [t for t in complete if is_restart_of(t, baseline)]
    if all(trial.phase == "sentinel" for trial in complete):
        return None
    absolute = resolve(budget, (own[0].metrics or {}) if own else {})
    cells = gather_cells(complete, absolute, names)
    keys = [cell_key(cell.candidate) for cell in cells]
    base = keys.index(cell_key(baseline)) if own else None
    costs = np.stack([cell.costs for cell in cells])
    feasible = np.array([cell.feasible for cell in cells])
    restarted = np.array([not cell.live for cell in cells])
    noise = replicate_noise(cells)
    sigma = None if noise is None else noise.sigma
    scores = score_cells(costs, feasible, _anchors(absolute, names), sigma)
    draws = as_restarts(draw_costs(cells, load_samples, names, classes, noise), cells, noise)
    knee = find_knee(costs, feasible & restarted, scores)
    if knee is not None:
        knee = replace(knee, front=non_dominated(costs, feasible))
    gain = None
    if knee is not None and base is not None:
        gain = _gain(scores, draws, base, knee.cell)
    noise_of_gain = _noise_of_gain(scores, noise, cells, knee, base)
    drawn = _Draws(draws, feasible, restarted, scores)
    broken = {key for key, cell in zip(keys, cells, strict=True) if not cell.feasible}
    broken |= cut_short(trials, absolute, classes)
    ruling = _rule(knee, base, gain, noise_of_gain, drawn, broken=len(broken))
    ruling = _question(ruling, cells, drawn)
    winner = ruling.winner
    nearest = _nearest(absolute, cells) if ruling.code == "nothing_feasible" else None
    return Judgement(
        code=ruling.code,
        budget=absolute,
        names=names,
        cells=tuple(cells),
        winner=winner,
        nearest=nearest,
        loosened=None
        if nearest is None
        else loosened(trials, absolute, cells[nearest].candidate, names, classes),
        baseline=base,
        knee=knee,
        certainty=ruling.certainty,
        scores=scores,
        gain=gain,
        noise=noise,
        too_noisy=ruling.too_noisy,
        kept=None if winner is None else _kept(absolute, cells[winner]),
        unconfirmed=ruling.unconfirmed,
        steadiness=assess_steadiness(
            complete, cells, budget=absolute, names=names, baseline=baseline, noise=noise
        ),
    )


def finalists(judgement: Judgement) -> list[Candidate]:
    """Return whom restarts may confirm: those that keep the budget, the best first.

    By what a restart of them is expected to score; never the baseline, which is restarted with
    them anyway. How many of them are confirmed is for the plan to say.
    """
    scores = _expected(judgement.cells, judgement.scores)
    able = [
        index
        for index, cell in enumerate(judgement.cells)
        if cell.feasible and index != judgement.baseline and math.isfinite(scores[index])
    ]
    return [judgement.cells[index].candidate for index in sorted(able, key=scores.__getitem__)]


def rivals(judgement: Judgement) -> list[Candidate]:
    """Return who else may be the best by what was measured, the likeliest first.

    The knee set without winner and baseline: it is for the plan to say who needs another trial.
    """
    if judgement.certainty is None:
        return []
    known = (judgement.winner, judgement.baseline)
    return [
        judgement.cells[index].candidate
        for index in judgement.certainty.knee_set
        if index not in known
    ]


def contested(judgement: Judgement) -> list[Candidate]:
    """Return who cannot be told apart yet: the winner so far, the baseline and their rivals.

    Nobody once the winner is as good as the best, within ``CONVERGED_COST``, in 95 of 100 draws,
    or while nothing keeps the budget.
    """
    chosen, certainty = judgement.chosen, judgement.certainty
    if chosen is None or certainty is None:
        return []
    if judgement.code != "not_converged" and certainty.regret_bound <= CONVERGED_COST:
        return []
    found = [chosen.candidate]
    if judgement.baseline not in (None, judgement.winner):
        found.append(judgement.cells[judgement.baseline].candidate)
    found += rivals(judgement)
    return found if len(found) > 1 else []


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
    """Return the gain that noise alone stays below 95 times in 100; None without replicates.

    0 where nothing counts, as all differences are within the noise.
    """
    if noise is None or knee is None or base is None:
        return None
    if not scores.used.any():
        return 0.0
    widths = np.log(scores.anchor[scores.used] / scores.ideal[scores.used])
    of_score = math.sqrt(np.nansum((noise.sigma[scores.used] / widths) ** 2)) / widths.size
    repeats = 1 / len(cells[base].numbers) + 1 / len(cells[knee.cell].numbers)
    return float(student_t_95(noise.degrees) * of_score * math.sqrt(repeats))


@dataclass(frozen=True, slots=True, eq=False)
class _Draws:
    """Resampled costs with what scores them.

    Attributes:
        costs: [resamples, cells, objectives], as restarts would have them.
        feasible: [cells], those that the winner is compared with.
        restarted: [cells], those that may win if they are feasible.
        scores: the scale.
    """

    costs: F8
    feasible: Bools
    restarted: Bools
    scores: Scores

    @property
    def eligible(self) -> Bools:
        """[cells], those that may win."""
        return self.feasible & self.restarted

    def certainty(self, cell: int, *, of_all: bool = False) -> Certainty:
        """Judge a cell by the objectives that count, or by all that were measured."""
        used = np.isfinite(self.scores.ideal) if of_all else self.scores.used
        return assess(self.costs, self.feasible, replace(self.scores, used=used), cell)

    def cost_among_restarts(self, cell: int) -> float:
        """Return what choosing a cell loses on average if only what may win is compared."""
        return assess(self.costs, self.eligible, self.scores, cell).expected_opportunity_cost


def _rule(
    knee: Knee | None,
    base: int | None,
    gain: tuple[float, Interval] | None,
    noise_of_gain: float | None,
    draws: _Draws,
    *,
    broken: int,
) -> _Ruling:
    """Decide: the knee, or the baseline where the gain is none, if that loses next to nothing.

    ``broken`` candidates were measured, in full or in part, and break the budget.
    """
    if knee is None:
        return _Ruling("nothing_feasible")
    best = draws.certainty(knee.cell)
    if draws.restarted.sum() == 1:
        alone = knee.cell == base and draws.feasible.sum() == 1 and broken >= ALONE_AFTER
        return _Ruling("keep_default" if alone else "not_converged", knee.cell, best)
    if base is not None and draws.eligible[base] and gain is not None:
        estimate, bounds = gain
        within_noise = noise_of_gain is not None and estimate <= noise_of_gain
        small = bounds.low is not None and bounds.low <= CONVERGED_COST
        if knee.cell == base or within_noise or small:
            # That a gain is not shown does not show that there is none, and what noise hides
            # entirely, and so does not count, least of all.
            keeping = draws.certainty(base, of_all=True)
            if keeping.expected_opportunity_cost <= KEEPING_COST:
                return _Ruling("keep_default", base, keeping)
            return _Ruling("not_converged", knee.cell, best, too_noisy=within_noise)
    settled = best.expected_opportunity_cost <= CONVERGED_COST
    return _Ruling("knee" if settled else "not_converged", knee.cell, best)


def _question(ruling: _Ruling, cells: Sequence[Cell], draws: _Draws) -> _Ruling:
    """Take a ruling back where a cell that was measured live only may be better.

    While no two cells were restarted that is the best of them; later one that is expected to
    beat the winner by more than counts as settled, or the likeliest of those without which the
    winner would be settled.
    """
    live = [i for i, cell in enumerate(cells) if cell.live and cell.feasible]
    if not live:
        return ruling
    expected = _expected(cells, draws.scores)
    best = min(live, key=expected.__getitem__)
    if ruling.winner is None:
        return replace(ruling, code="not_converged", unconfirmed=best)
    if draws.restarted.sum() == 1:
        return replace(ruling, unconfirmed=best)
    if expected[ruling.winner] - expected[best] > CONVERGED_COST:
        return replace(ruling, code="not_converged", unconfirmed=best)
    if ruling.code == "not_converged" and not ruling.too_noisy and ruling.certainty is not None:
        likely = [i for i in ruling.certainty.knee_set if cells[i].live]
        if likely and draws.cost_among_restarts(ruling.winner) <= CONVERGED_COST:
            return replace(ruling, unconfirmed=likely[0])
    return ruling


def _expected(cells: Sequence[Cell], scores: Scores) -> list[float]:
    """Return the scores of restarts, and those that live cells are expected to have by one.

    Live trials may flatter all candidates alike, and none may win or be chosen by that.
    """
    factor = np.exp(live_shift(cells, None).offset)
    costs = np.stack([cell.costs * factor if cell.live else cell.costs for cell in cells])
    expected: list[float] = scores.of(costs).tolist()
    return expected


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
        "unconfirmed": None
        if judgement.unconfirmed is None
        else dict(judgement.cells[judgement.unconfirmed].candidate),
        **judgement.steadiness.to_json(),
    }


def _named(names: Sequence[str], values: F8) -> Mapping[str, float]:
    return {n: float(v) for n, v in zip(names, values, strict=True) if math.isfinite(v)}
