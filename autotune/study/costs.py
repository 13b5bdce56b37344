"""From trials to the numbers that a verdict compares: one row of costs a cell.

All objectives are costs to minimise: two latencies in ms, and busy seconds per 1,000 useful
tokens, which is the reciprocal of utilization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.candidates.lattice import Candidate, cell_key
from autotune.engine.protocol import request_arrays
from objectives.budget import Budget, is_feasible, latency_objectives
from objectives.latency import (
    LengthClass,
    class_mask,
    e2e_ms,
    itl_ms,
    itl_owner,
    tpot_ms,
    ttft_ms,
)
from objectives.samples import RequestSamples
from objectives.statistics import bootstrap_draws
from storage.records import TrialRecord

F8 = NDArray[np.float64]

WORK_COST = "busy_s_per_1k_tokens"
OBJECTIVES = 3
"""How many costs a trial has."""

RESAMPLES = 300

LoadSamples = Callable[[int], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """All complete trials of one candidate.

    Attributes:
        candidate: the engine arguments.
        numbers: of the trials, the first one first.
        costs: [objectives], geometric means over the trials; NaN where not measured.
        log_costs: [trials, objectives].
        metrics: medians over the trials, by name.
        intervals: of the trial with the most samples behind it, the last one.
        feasible: whether ``metrics`` keep the budget.
        failed_requests: in all of its trials.
    """

    candidate: Candidate
    numbers: tuple[int, ...]
    costs: F8
    log_costs: F8
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Any]
    feasible: bool
    failed_requests: int


def objective_names(budget: Budget) -> tuple[str, str, str]:
    """Return the two latency metrics that are scored, and the cost of work."""
    return (*latency_objectives(budget), WORK_COST)


def costs_of(metrics: Mapping[str, float | None], names: Sequence[str]) -> tuple[float, ...]:
    """Return the objectives of one measurement; NaN where there is nothing to measure."""
    rate = metrics.get("tokens_per_busy_s")
    values = {**metrics, WORK_COST: 1000 / rate if rate else None}
    found = (values.get(name) for name in names)
    return tuple(math.nan if value is None else float(value) for value in found)


def gather_cells(
    trials: Sequence[TrialRecord], budget: Budget, names: Sequence[str]
) -> list[Cell]:
    """Group the complete trials by candidate, in the order in which these were first tried.

    ``budget`` has no relative limits any more.
    """
    groups: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        if trial.state == "complete" and trial.metrics is not None:
            groups.setdefault(cell_key(trial.candidate), []).append(trial)
    return [_cell(group, budget, names) for group in groups.values()]


def _cell(group: Sequence[TrialRecord], budget: Budget, names: Sequence[str]) -> Cell:
    measured = [trial.metrics or {} for trial in group]
    with np.errstate(divide="ignore"):
        log_costs = np.log(np.array([costs_of(metrics, names) for metrics in measured]))
    metrics = {name: _median([each.get(name) for each in measured]) for name in measured[0]}
    failed = sum(int((trial.engine or {}).get("failed_requests", 0)) for trial in group)
    return Cell(
        candidate=group[0].candidate,
        numbers=tuple(trial.number for trial in group),
        costs=np.exp(log_costs.mean(axis=0)),
        log_costs=log_costs,
        metrics=metrics,
        intervals=group[-1].intervals or {},
        feasible=is_feasible(budget, metrics, failed),
        failed_requests=failed,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def replicate_noise(cells: Sequence[Cell]) -> F8 | None:
    """Return the standard deviation of log costs between trials of one cell, [objectives].

    Pooled over the cells that were measured more than once; None if none was.
    """
    repeated = [cell.log_costs for cell in cells if len(cell.numbers) > 1]
    if not repeated:
        return None
    squares = sum(((logs - logs.mean(axis=0)) ** 2).sum(axis=0) for logs in repeated)
    noise: F8 = np.sqrt(squares / sum(len(logs) - 1 for logs in repeated))
    return noise


def draw_costs(
    cells: Sequence[Cell],
    load_samples: LoadSamples,
    names: Sequence[str],
    classes: Sequence[LengthClass],
) -> F8:
    """Return bootstrap replicates of the costs, [resamples, cells, objectives].

    The same blocks of requests are drawn for every trial, since all replay the same rows. The
    cost of work has no such spread and keeps its value.
    """
    draws = np.empty((RESAMPLES, len(cells), len(names)))
    for column, cell in enumerate(cells):
        logs = [_log_draws(load_samples(n), names, classes) for n in cell.numbers]
        draws[:, column, :] = np.exp(np.mean(logs, axis=0))
        draws[:, column, -1] = cell.costs[-1]
    return draws


def _log_draws(
    arrays: Mapping[str, NDArray[Any]], names: Sequence[str], classes: Sequence[LengthClass]
) -> F8:
    samples = RequestSamples.from_arrays(request_arrays(arrays))
    columns = [_draws_of(samples, name, classes) for name in names[:-1]]
    with np.errstate(divide="ignore"):
        return np.log(np.stack([*columns, np.ones(RESAMPLES)], axis=1))


def _draws_of(samples: RequestSamples, name: str, classes: Sequence[LengthClass]) -> F8:
    metric, _, rest = name.partition("_")
    aggregate, _, class_name = rest.partition("@")
    owner = itl_owner(samples) if metric == "itl" else np.arange(len(samples))
    values = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms, "itl": itl_ms}[metric](samples)
    for each in classes:
        if each.name == class_name:
            inside = class_mask(samples.prompt_tokens, each)
            values = np.where(inside[owner], values, np.nan)
    return bootstrap_draws(
        values, aggregate, owner=owner, requests=len(samples), resamples=RESAMPLES
    )
