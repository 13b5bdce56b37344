"""Whether the machine stood still, and whether live trials tell what restarts would.

Three questions, answered from the trials of a study with live ones: by how much a candidate
differs from itself when nothing changes (A/A), whether the baseline became faster or slower
meanwhile (drift), and whether limits changed on a running engine measure what an engine started
with them does. All are asked in logs, since people judge ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from autotune.candidates.lattice import Candidate
from autotune.study.costs import Cell, Noise, work_metric
from autotune.study.counted import is_restart_of
from objectives.arrays import F8
from objectives.limits import Budget
from objectives.statistics import student_t_95
from storage.records import TrialRecord

DRIFT_P = 0.01
"""Two-sided p below which a difference is more than noise; several are asked for in a study."""

DRIFT_LEAST = 0.05
"""Relative changes below this are no drift worth a word, however certain."""

FEWEST_SENTINELS = 3

_COMPARED = ("kv_cache_tokens", "capture_sizes")


@dataclass(frozen=True, slots=True)
class Spread:
    """How much live trials of the baseline differ: a standard deviation of logs."""

    sigma: float
    trials: int


@dataclass(frozen=True, slots=True)
class Trend:
    """How a metric of the baseline changed from its first trial to its last.

    Attributes:
        change: relative, along the line fitted to the logs: 0.1 is 10 % more.
        hours: from the first to the last trial.
        p: two-sided probability of such a slope without any drift.
        flagged: the change is beyond noise, and large enough to matter.
    """

    change: float
    hours: float
    p: float
    flagged: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """Live over restart of one objective of one candidate.

    Attributes:
        change: relative: 0.1 is 10 % more by live trials.
        low, high: of its 90 % interval; None where the noise between repeats is unknown.
        beyond_noise: None where that is unknown.
    """

    change: float
    low: float | None
    high: float | None
    beyond_noise: bool | None


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """A candidate that was measured both ways.

    Attributes:
        candidate: the engine arguments.
        restarts: numbers of its restarts.
        lives: numbers of its live trials.
        differences: by objective.
        reasons: what may explain a difference beyond noise: ``kv_cache_tokens`` or
            ``capture_sizes`` that differ between the trials, else ``unknown``; empty where
            there is no such difference.
    """

    candidate: Candidate
    restarts: tuple[int, ...]
    lives: tuple[int, ...]
    differences: Mapping[str, Difference]
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "candidate": dict(self.candidate),
            "restarts": list(self.restarts),
            "lives": list(self.lives),
            "differences": {name: asdict(each) for name, each in self.differences.items()},
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class Steadiness:
    """What repeats say of machine and method; empty in a study of restarts alone."""

    spread: Mapping[str, Spread] = field(default_factory=dict)
    drift: Mapping[str, Trend] = field(default_factory=dict)
    faithfulness: tuple[Faithfulness, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "aa": {name: asdict(each) for name, each in self.spread.items()},
            "drift": {name: asdict(each) for name, each in self.drift.items()},
            "live_against_restart": [each.to_json() for each in self.faithfulness],
        }


def assess_steadiness(
    trials: Sequence[TrialRecord],
    cells: Sequence[Cell],
    *,
    budget: Budget,
    names: Sequence[str],
    baseline: Candidate,
    noise: Noise | None,
) -> Steadiness:
    """Answer the three questions.

    Args:
        trials: those that count.
        cells: made of them.
        budget: names the values that are looked at, beside latencies and work that are scored.
        names: of the objectives.
        baseline: whom the sentinels measure.
        noise: of the objectives, between repeats.
    """
    work = work_metric(trial.metrics or {} for trial in trials)
    metrics = dict.fromkeys([*(limit.key for limit in budget.limits), *names[:-1], work])
    sentinels = [trial for trial in trials if trial.phase == "sentinel"]
    own = sentinels + [trial for trial in trials if is_restart_of(trial, baseline)]
    engines = {trial.number: trial.engine or {} for trial in trials}
    return Steadiness(
        spread={name: s for name in metrics if (s := _spread(sentinels, name)) is not None},
        drift={name: t for name in metrics if (t := _trend(own, name)) is not None},
        faithfulness=tuple(
            _faithfulness(cell, names, noise, engines)
            for cell in cells
            if not cell.live and cell.live_numbers
        ),
    )


def two_sided_p(t: float, degrees: int) -> float:
    """Return the probability that Student's t lies further from 0 than ``t``.

    The finite series of Abramowitz and Stegun (1964, Handbook of Mathematical Functions, 26.7.3
    and 26.7.4), exact for whole degrees of freedom, of which there must be one at least.
    """
    angle = math.atan2(abs(t), math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


def _spread(sentinels: Sequence[TrialRecord], name: str) -> Spread | None:
    logs = [log for trial in sentinels if (log := _log(trial, name)) is not None]
    return Spread(float(np.std(logs, ddof=1)), len(logs)) if len(logs) > 1 else None


def _trend(own: Sequence[TrialRecord], name: str) -> Trend | None:
    """Fit one slope over time, with a level for live trials and one for restarts."""
    known = [(trial, log) for trial in own if (log := _log(trial, name)) is not None]
    live = np.array([trial.fidelity == "live" for trial, _ in known], dtype=np.float64)
    both = 0 < live.sum() < live.size
    degrees = len(known) - (3 if both else 2)
    if live.sum() < FEWEST_SENTINELS or degrees < 1:
        return None
    hours = _hours([trial for trial, _ in known])
    span = float(hours.max())
    if span == 0:
        return None
    columns = [hours, live, 1 - live] if both else [hours, live]
    design, logs = np.stack(columns, axis=1), np.array([log for _, log in known])
    fit = np.linalg.lstsq(design, logs, rcond=None)[0]
    left = logs - design @ fit
    inverse = np.linalg.pinv(design.T @ design)
    error = math.sqrt(float(left @ left) / degrees * float(inverse[0, 0]))
    change = math.expm1(float(fit[0]) * span)
    p = _p(float(fit[0]), error, degrees)
    flagged = p <= DRIFT_P and abs(change) > DRIFT_LEAST
    return Trend(change, span, p, flagged)


def _hours(trials: Sequence[TrialRecord]) -> F8:
    times = [datetime.fromisoformat(trial.started_at).timestamp() for trial in trials]
    hours: F8 = (np.array(times) - min(times)) / 3600
    return hours


def _faithfulness(
    cell: Cell,
    names: Sequence[str],
    noise: Noise | None,
    engines: Mapping[int, Mapping[str, Any]],
) -> Faithfulness:
    with np.errstate(invalid="ignore"):  # Both may be infinite.
        shifts = _mean(cell.live_log_costs) - _mean(cell.log_costs)
    repeats = math.sqrt(1 / len(cell.live_log_costs) + 1 / len(cell.log_costs))
    found = {}
    for column, name in enumerate(names):
        if math.isfinite(shifts[column]):
            sigma = None if noise is None else float(noise.sigma[column]) * repeats
            degrees = 0 if noise is None else noise.degrees
            found[name] = _difference(float(shifts[column]), sigma, degrees)
    reasons: tuple[str, ...] = ()
    if any(each.beyond_noise for each in found.values()):
        both = [engines[n] for n in cell.numbers], [engines[n] for n in cell.live_numbers]
        unequal = tuple(key for key in _COMPARED if _values(both[0], key) != _values(both[1], key))
        reasons = unequal or ("unknown",)
    return Faithfulness(cell.candidate, cell.numbers, cell.live_numbers, found, reasons)


def _difference(shift: float, sigma: float | None, degrees: int) -> Difference:
    if sigma is None or not math.isfinite(sigma):
        return Difference(math.expm1(shift), None, None, None)
    width = student_t_95(degrees) * sigma
    beyond = _p(shift, sigma, degrees) <= DRIFT_P
    return Difference(
        math.expm1(shift), math.expm1(shift - width), math.expm1(shift + width), beyond
    )


def _p(value: float, error: float, degrees: int) -> float:
    if error > 0:
        return two_sided_p(value / error, degrees)
    return 1.0 if value == 0 else 0.0


def _values(engines: Sequence[Mapping[str, Any]], key: str) -> set[str]:
    return {str(engine.get(key)) for engine in engines}


def _log(trial: TrialRecord, name: str) -> float | None:
    value = (trial.metrics or {}).get(name)
    return math.log(value) if value and math.isfinite(value) else None


def _mean(logs: F8) -> F8:
    mean: F8 = logs.mean(axis=0)
    return mean
