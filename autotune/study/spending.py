"""What a study cost: seconds by part, trials by phase, and what was lost to failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from autotune.study.view import StudyView, simulated_by
from storage.events import EventRecord
from storage.records import TrialRecord

SLOW_SPELL = "slow_spell"
"""The class of a replay that does not count since the machine slowed down meanwhile."""

PARTS = {
    "calibrate_s": "calibrating",
    "start_s": "starting",
    "warmup_s": "warming up",
    "replay_s": "replaying",
    "stop_s": "stopping",
    "lost_s": "lost to failures",
    "idle_s": "idle between trials",
}
"""Where time goes, with its word."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What a study cost so far.

    Attributes:
        seconds: by part, one of ``PARTS``; ``idle_s`` and ``lost_s`` are None of a simulated
            study, for which nobody waited.
        gpus: how many were held, None where no trial says so or a CPU was used.
        simulated: whether the seconds are those of a simulation.
        trials: how many by phase and fidelity, in order of their first.
        states: how many by state.
    """

    seconds: Mapping[str, float | None]
    gpus: int | None
    simulated: bool
    trials: Mapping[tuple[str, str], int]
    states: Mapping[str, int]

    @property
    def total_s(self) -> float:
        return sum(seconds or 0.0 for seconds in self.seconds.values())


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The failures of one class: numbers of their trials, and what the last of them said."""

    failure_class: str
    numbers: tuple[int, ...]
    evidence: str


def spending_of(view: StudyView, events: Sequence[EventRecord]) -> Spending:
    """Return what a study cost, by what its trials say of themselves."""
    simulated = simulated_by(view.study) is not None
    trials = view.trials
    calibration = view.study.spec.get("calibration") or {}
    seconds: dict[str, float | None] = {"calibrate_s": float(calibration.get("seconds") or 0.0)}
    for name in ("start_s", "warmup_s", "replay_s", "stop_s"):
        seconds[name] = sum((trial.timings or {}).get(name) or 0.0 for trial in trials)
    seconds["lost_s"] = None if simulated else sum(map(_lost_s, trials))
    seconds["idle_s"] = None if simulated else sum(_gaps(trials, events))
    return Spending(
        seconds=seconds,
        gpus=_gpus(trials),
        simulated=simulated,
        trials=Counter((trial.phase, trial.fidelity) for trial in trials),
        states=Counter(trial.state for trial in trials),
    )


def failures_of(trials: Sequence[TrialRecord]) -> tuple[FailureGroup, ...]:
    """Return failures by class, the most frequent first; slow spells are the machine's."""
    groups: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        if trial.failure_class is not None and trial.failure_class != SLOW_SPELL:
            groups.setdefault(trial.failure_class, []).append(trial)
    found = [
        FailureGroup(name, tuple(t.number for t in group), group[-1].failure_evidence or "")
        for name, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: -len(each.numbers)))


def slow_spells_of(trials: Sequence[TrialRecord]) -> tuple[int, ...]:
    """Return the numbers of the trials that a slow spell of the machine made invalid."""
    return tuple(trial.number for trial in trials if trial.failure_class == SLOW_SPELL)


def spending_json(spending: Spending) -> dict[str, Any]:
    """Return a spending as plain JSON values."""
    return {
        "seconds": dict(spending.seconds),
        "total_s": spending.total_s,
        "gpus": spending.gpus,
        "trials": [
            {"phase": phase, "fidelity": fidelity, "trials": count}
            for (phase, fidelity), count in spending.trials.items()
        ],
        "states": dict(spending.states),
    }


def _lost_s(trial: TrialRecord) -> float:
    """Return what a failure took; of a trial that was interrupted nobody knows when it ended."""
    if trial.timings is not None or trial.state not in ("failed", "infeasible"):
        return 0.0
    return _between_s(trial.started_at, trial.finished_at)


def _gaps(trials: Sequence[TrialRecord], events: Sequence[EventRecord]) -> Iterator[float]:
    """Yield the seconds from each trial's end to the next one's start, while a study ran."""
    resumed = [_time(event.at) for event in events if event.kind == "resumed"]
    for earlier, later in pairwise(trials):
        if earlier.finished_at is None or earlier.state == "interrupted":
            continue
        begin, end = _time(earlier.finished_at), _time(later.started_at)
        if not any(begin <= at <= end for at in resumed):
            yield max(0.0, (end - begin).total_seconds())


def _gpus(trials: Sequence[TrialRecord]) -> int | None:
    known = [len((trial.engine or {}).get("device_uuids") or ()) for trial in trials]
    return max(known, default=0) or None


def _between_s(begin: str, end: str | None) -> float:
    return 0.0 if end is None else max(0.0, (_time(end) - _time(begin)).total_seconds())


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
