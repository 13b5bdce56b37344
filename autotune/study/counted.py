"""Which trials a budget counts, from what is stored of them: the same whatever came before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.candidates.lattice import Candidate, cell_key
from autotune.study.costs import Cell, gather_cells
from autotune.study.replays import LATE, allowed_lag_ms
from objectives.budget import resolve
from objectives.classes import LengthClass, classes_text
from objectives.limits import Budget, parse_budget
from storage.records import Json, TrialRecord

_LONGEST_TYPED = 8
_ROUNDS = 6
_DIGITS = 2


def counted_trials(
    trials: Iterable[TrialRecord],
    budget: Budget,
    baseline: Candidate,
    classes: Sequence[LengthClass] = (),
) -> list[TrialRecord]:
    """Return the measured trials that count under a budget, as complete ones.

    A replay whose client sent late counts if the TTFT limit allows it. What state another
    budget had left a trial in plays no part. Relative limits allow nothing before the
    baseline's first restart that counts. What was measured live of a candidate does not count
    where a restart failed by its fault, or was cut short with the budget lost, and none counts.

    Raises:
        ObjectiveError: a relative limit on what the baseline has no finite value of.
    """
    absolute, found = Budget(budget.absolute), []
    known = len(absolute.limits) == len(budget.limits)
    everything = tuple(trials)
    for trial in everything:
        if not _counts(trial, absolute):
            continue
        found.append(replace(trial, state="complete"))
        if not known and is_restart_of(trial, baseline):
            absolute, known = resolve(budget, trial.metrics or {}), True
    refuted = {cell_key(t.candidate) for t in everything if _refutes(t, absolute, classes)}
    refuted -= {cell_key(t.candidate) for t in found if t.fidelity == "restart"}
    return [t for t in found if t.fidelity != "live" or cell_key(t.candidate) not in refuted]


def is_restart_of(trial: TrialRecord, candidate: Candidate) -> bool:
    """Whether an engine was started with these arguments for a trial."""
    return trial.fidelity == "restart" and cell_key(trial.candidate) == cell_key(candidate)


def breaks_for_certain(trial: TrialRecord, budget: Budget, classes: Sequence[LengthClass]) -> bool:
    """Whether what was seen of a replay that was cut short shows that it breaks a budget.

    Nothing is shown by one whose client sent too late to count under this budget.

    Args:
        trial: of any state.
        budget: without relative limits.
        classes: of prompt length.
    """
    cut = censored(trial)
    if cut is None:
        return False
    bounds = bounds_of(cut, classes)
    lag_ms = (trial.engine or {}).get("send_lag_p99_ms")
    if lag_ms is not None and float(lag_ms) > allowed_lag_ms(bounds, budget):
        return False
    return any((bounds.get(x.key) or 0.0) > (x.limit_ms or math.inf) for x in budget.limits)


def cut_short(
    trials: Iterable[TrialRecord], budget: Budget, classes: Sequence[LengthClass]
) -> set[str]:
    """Return the keys of the candidates of which a part of a replay breaks a budget for certain.

    Args:
        trials: of any state.
        budget: without relative limits.
        classes: of prompt length.
    """
    return {cell_key(t.candidate) for t in trials if breaks_for_certain(t, budget, classes)}


def bounds_of(cut: Json, classes: Sequence[LengthClass]) -> dict[str, float | None]:
    """Return what a replay that was cut short would have had at least, in ms by key.

    Without what is about classes, if these are others by now.
    """
    same = cut.get("classes", "") == classes_text(classes)
    return {name: ms for name, ms in cut["bounds"].items() if same or "@" not in name}


def censored(trial: TrialRecord) -> Json | None:
    """Return when and why a replay was cut short, None if it was not."""
    cut: Json | None = (trial.engine or {}).get("censored")
    return cut


def _refutes(trial: TrialRecord, budget: Budget, classes: Sequence[LengthClass]) -> bool:
    if trial.fidelity != "restart":
        return False
    if censored(trial) is not None:
        return breaks_for_certain(trial, budget, classes)
    return trial.state == "infeasible"


def _counts(trial: TrialRecord, budget: Budget) -> bool:
    late = trial.state == "invalid" and trial.failure_class == LATE
    if trial.metrics is None or not (late or trial.state == "complete"):
        return False
    lag_ms = (trial.engine or {}).get("send_lag_p99_ms")
    if lag_ms is None:
        return not late
    return float(lag_ms) <= allowed_lag_ms(trial.metrics, budget)


def loosened(
    trials: Sequence[TrialRecord],
    budget: Budget,
    candidate: Candidate,
    names: Sequence[str],
    classes: Sequence[LengthClass] = (),
) -> Budget | None:
    """Return a budget that a candidate keeps, no looser than need be; None if none is found.

    A looser TTFT limit also counts replays that were sent late, which may make the candidate
    look worse: so the trials are judged by what is proposed before it is proposed.

    Args:
        trials: all of the study.
        budget: one that the candidate breaks, without relative limits.
        candidate: of at least one trial that counts.
        names: of the objectives.
        classes: of prompt length.
    """
    proposed: Budget | None = budget
    for _ in range(_ROUNDS):
        if proposed is None:
            return None
        counting = counted_trials(trials, proposed, candidate, classes)
        cells = gather_cells(counting, proposed, names)
        own = next(c for c in cells if cell_key(c.candidate) == cell_key(candidate))
        if own.feasible:
            return proposed
        proposed = _met_by(proposed, own)
    return None


def _met_by(budget: Budget, cell: Cell) -> Budget | None:
    """Return the budget with each limit that the cell breaks rounded up to what it meets."""
    if cell.failed_requests:
        return None
    met = []
    for limit in budget.limits:
        value = cell.metrics.get(limit.key)
        if value is None or not math.isfinite(value) or limit.limit_ms is None:
            return None
        kept = value <= limit.limit_ms
        # Relative limits were resolved to more digits than anybody would type.
        least = max(value, limit.limit_ms if kept else 0.0)
        typed = kept and len(repr(least)) <= _LONGEST_TYPED
        met.append(limit if typed else replace(limit, limit_ms=_rounded_up(least)))
    # As a user would give it: what counts is what the text says.
    return parse_budget(Budget(tuple(met)).text)


def _rounded_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return round(math.ceil(value / unit) * unit, 6)
