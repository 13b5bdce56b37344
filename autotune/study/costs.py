"""From trials to the numbers that a verdict compares: one row of costs a cell.

All objectives are costs to minimise: two latencies in ms, and the busy time that work takes: the
reciprocal of utilization, or before there is a calibration busy seconds per 1,000 useful tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from autotune.candidates.lattice import Candidate, cell_key
from objectives.arrays import F8
from objectives.budget import is_feasible, latency_objectives
from objectives.classes import LengthClass, class_mask
from objectives.latency import e2e_ms, itl_ms, itl_owner, tpot_ms, ttft_ms
from objectives.limits import Budget
from objectives.samples import RequestSamples
from objectives.statistics import bootstrap_draws
from objectives.steps import request_arrays
from storage.records import Json, TrialRecord

WORK_COST = "work_cost"
UTILIZATION = "utilization"
RATE = "tokens_per_busy_s"
OBJECTIVES = 3
"""How many costs a trial has."""

RESAMPLES = 300

_NOISE_SEED = 0
"""Fixed, so that the same trials always give the same verdict."""

LEAST_DEGREES = 3
"""Degrees of freedom from which repeats tell the noise well enough to go by them alone; below,
Student's t has no variance either."""

Fidelity = Literal["restart", "live"]
"""How a trial came to its limits: an engine started with them, or a running one changed."""

LoadSamples = Callable[[int], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """All complete trials of one candidate.

    Its figures are those of its restarts alone, where it has some, else of its live trials.

    Attributes:
        candidate: the engine arguments.
        numbers: of the trials that the figures come from, the first one first.
        costs: [objectives], geometric means over these trials; NaN where not measured.
        log_costs: [trials, objectives].
        metrics: geometric means over the trials, by name, so that ratios of them are those
            of the costs.
        intervals: from the lowest to the highest bound of any of the trials.
        feasible: whether ``metrics`` keep the budget.
        failed_requests: in all of its trials.
        met: numbers of the trials whose own values keep the budget.
        diagnosis: of the last trial, None if it has none.
        fidelity: of the trials that the figures come from.
        live_numbers: of its live trials, sentinels included, whether or not the figures are
            theirs.
        live_log_costs: [live trials, objectives].
        peak_running: the most requests that ever ran at once in the trials of the figures, None
            if nothing was recorded.
    """

    candidate: Candidate
    numbers: tuple[int, ...]
    costs: F8
    log_costs: F8
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Any]
    feasible: bool
    failed_requests: int
    met: tuple[int, ...] = ()
    diagnosis: Json | None = None
    fidelity: Fidelity = "restart"
    live_numbers: tuple[int, ...] = ()
    live_log_costs: F8 = field(default_factory=lambda: np.empty((0, OBJECTIVES)))
    peak_running: int | None = None

    @property
    def live(self) -> bool:
        """Whether no restart has measured it."""
        return self.fidelity == "live"

    @property
    def repeats(self) -> tuple[F8, ...]:
        """The log costs of trials that repeat each other: of restarts, and of live trials."""
        return (self.live_log_costs,) if self.live else (self.log_costs, self.live_log_costs)


def objective_names(budget: Budget) -> tuple[str, str, str]:
    """Return the two latency metrics that are scored, and the cost of work."""
    return (*latency_objectives(budget), WORK_COST)


def costs_of(metrics: Mapping[str, float | None], names: Sequence[str]) -> tuple[float, ...]:
    """Return the objectives of one measurement; NaN where there is nothing to measure."""
    values = {**metrics, WORK_COST: _work_cost(metrics)}
    found = (values.get(name) for name in names)
    return tuple(math.nan if value is None else float(value) for value in found)


def work_metric(measured: Iterable[Mapping[str, float | None]]) -> str:
    """Return the metric by which the work of these trials is scored and told.

    A study is calibrated before its first trial or never, so all of its trials have a
    utilization, or none has.
    """
    calibrated = any(metrics.get(UTILIZATION) is not None for metrics in measured)
    return UTILIZATION if calibrated else RATE


def _work_cost(metrics: Mapping[str, float | None]) -> float | None:
    """Return 1 over utilization, or 1000 over tokens per busy second; None for no work at all."""
    name = work_metric([metrics])
    done = metrics.get(name)
    if not done:
        return None
    return 1 / done if name == UTILIZATION else 1000 / done


def gather_cells(
    trials: Sequence[TrialRecord], budget: Budget, names: Sequence[str]
) -> list[Cell]:
    """Group the complete trials by candidate, in the order in which these were first tried.

    Sentinels alone make no cell: they tell noise, and nothing of the candidate that counts.
    ``budget`` has no relative limits any more.
    """
    groups: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        if trial.state == "complete" and trial.metrics is not None:
            groups.setdefault(cell_key(trial.candidate), []).append(trial)
    return [
        _cell(counting, group, budget, names)
        for group in groups.values()
        if (counting := _of_best_fidelity(group))
    ]


def _of_best_fidelity(group: Sequence[TrialRecord]) -> list[TrialRecord]:
    restarts = [trial for trial in group if trial.fidelity == "restart"]
    return restarts or [trial for trial in group if trial.phase != "sentinel"]


def _cell(
    group: Sequence[TrialRecord],
    everything: Sequence[TrialRecord],
    budget: Budget,
    names: Sequence[str],
) -> Cell:
    measured = [trial.metrics or {} for trial in group]
    log_costs = _log_costs(measured, names)
    live = [trial for trial in everything if trial.fidelity == "live"]
    metrics = {name: mean_of_trials([each.get(name) for each in measured]) for name in measured[0]}
    failures = [int((trial.engine or {}).get("failed_requests", 0)) for trial in group]
    return Cell(
        candidate=group[0].candidate,
        numbers=tuple(trial.number for trial in group),
        costs=np.exp(log_costs.mean(axis=0)),
        log_costs=log_costs,
        metrics=metrics,
        intervals=widest([trial.intervals or {} for trial in group]),
        feasible=is_feasible(budget, metrics, sum(failures)),
        failed_requests=sum(failures),
        met=tuple(
            trial.number
            for trial, own, failed in zip(group, measured, failures, strict=True)
            if is_feasible(budget, own, failed)
        ),
        diagnosis=group[-1].diagnosis,
        fidelity="live" if group[0].fidelity == "live" else "restart",
        live_numbers=tuple(trial.number for trial in live),
        live_log_costs=_log_costs([trial.metrics or {} for trial in live], names),
        peak_running=_peak_running(group),
    )


def _peak_running(group: Sequence[TrialRecord]) -> int | None:
    loads = [(trial.engine or {}).get("load") for trial in group]
    return max(
        (int(load["peak_running"]) for load in loads if load and load["steps"]), default=None
    )


def _log_costs(measured: Sequence[Mapping[str, float | None]], names: Sequence[str]) -> F8:
    rows = [costs_of(metrics, names) for metrics in measured]
    with np.errstate(divide="ignore"):
        logs: F8 = np.log(np.array(rows).reshape(-1, len(names)))
    return logs


def widest(intervals: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return bounds that hold for each of the trials; None where one of them has no bound."""
    widest: dict[str, list[float | None]] = {}
    for name in intervals[0]:
        bounds = [each.get(name) or (None, None) for each in intervals]
        lows = [low for low, _ in bounds if low is not None]
        highs = [high for _, high in bounds if high is not None]
        widest[name] = [
            min(lows) if len(lows) == len(bounds) else None,
            max(highs) if len(highs) == len(bounds) else None,
        ]
    return widest


def mean_of_trials(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean of what was measured; infinite if one of it is, else 0 by a 0."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    if math.inf in known:
        return math.inf
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if min(known) > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """How much trials of one candidate differ.

    Attributes:
        sigma: [objectives], standard deviation of log costs; NaN where it is unknown.
        degrees: of freedom behind it.
    """

    sigma: F8
    degrees: int


def replicate_noise(cells: Sequence[Cell]) -> Noise | None:
    """Return the noise between trials of one cell, None if no cell was measured twice.

    Pooled over the cells that were, restarts and live trials of one apart, since these may
    differ by more than noise; trials with an infinite cost say nothing of it.
    """
    groups = [group for cell in cells for group in cell.repeats]
    repeated = [logs for group in groups if len(logs := _finite_rows(group)) > 1]
    if not repeated:
        return None
    degrees = sum(len(logs) - 1 for logs in repeated)
    squares = sum(((logs - logs.mean(axis=0)) ** 2).sum(axis=0) for logs in repeated)
    return Noise(np.sqrt(squares / degrees), degrees)


def _finite_rows(log_costs: F8) -> F8:
    """Return the trials without an infinite cost; NaN means that there is no such metric."""
    finite: F8 = log_costs[~np.isinf(log_costs).any(axis=1)]
    return finite


def draw_costs(
    cells: Sequence[Cell],
    load_samples: LoadSamples,
    names: Sequence[str],
    classes: Sequence[LengthClass],
    noise: Noise | None,
) -> F8:
    """Return resampled costs, [resamples, cells, objectives].

    Once repeats tell the noise between trials, they alone tell candidates apart on this traffic:
    it is drawn for each cell apart, less the more often that was measured, and as widely spread
    as Student's t of so many degrees of freedom. Until then the same blocks of requests are drawn
    for every trial, since all replay the same rows, and the noise comes on top if anything is
    known of it; the cost of work has no such spread.
    """
    draws = np.broadcast_to([cell.costs for cell in cells], (RESAMPLES, len(cells), len(names)))
    if noise is None or noise.degrees < LEAST_DEGREES:
        draws = draws.copy()
        for column, cell in enumerate(cells):
            logs = [_log_draws(load_samples(n), names, classes) for n in cell.numbers]
            draws[:, column, :-1] = np.exp(np.mean(logs, axis=0))
    if noise is None:
        return draws
    repeats = np.array([len(cell.numbers) for cell in cells])
    sigma = np.nan_to_num(noise.sigma) / np.sqrt(repeats)[:, np.newaxis]
    chances = np.random.default_rng(_NOISE_SEED)
    deviations = chances.standard_normal(draws.shape)
    degrees = max(LEAST_DEGREES, noise.degrees)
    scale = np.sqrt(degrees / chances.chisquare(degrees, (RESAMPLES, 1, 1)))
    noisy: F8 = draws * np.exp(sigma * scale * deviations)
    return noisy


def _log_draws(
    arrays: Mapping[str, NDArray[Any]], names: Sequence[str], classes: Sequence[LengthClass]
) -> F8:
    samples = RequestSamples.from_arrays(request_arrays(arrays))
    columns = [draws_of(samples, name, classes) for name in names[:-1]]
    with np.errstate(divide="ignore"):
        return np.log(np.stack(columns, axis=1))


def draws_of(
    samples: RequestSamples,
    name: str,
    classes: Sequence[LengthClass],
    *,
    resamples: int = RESAMPLES,
) -> F8:
    """Return a latency such as ``itl_p99@short`` in each resample, [resamples].

    Replays of one trace draw the same requests in the same resample.
    """
    metric, _, rest = name.partition("_")
    aggregate, _, class_name = rest.partition("@")
    owner = itl_owner(samples) if metric == "itl" else np.arange(len(samples))
    values = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms, "itl": itl_ms}[metric](samples)
    for each in classes:
        if each.name == class_name:
            inside = class_mask(samples.prompt_tokens, each)
            values = np.where(inside[owner], values, np.nan)
    return bootstrap_draws(
        values, aggregate, owner=owner, requests=len(samples), resamples=resamples
    )
