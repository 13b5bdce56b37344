"""The values that the repository takes and gives. Times are UTC in ISO 8601, missing is None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from storage.errors import StorageError

StudyState: TypeAlias = Literal["running", "finished", "interrupted"]
FinishedState: TypeAlias = Literal["complete", "infeasible", "failed", "invalid", "interrupted"]
TrialState: TypeAlias = Literal["running"] | FinishedState
Json: TypeAlias = Mapping[str, Any]
"""What JSON can hold, infinite floats included and NaN excluded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What Optuna is to be told of a trial.

    Attributes:
        state: "complete", also for infeasible trials, or "fail".
        values: One objective value per direction, lower is better; None if and only if "fail".
        constraints: By budget line; a trial is feasible if none is above 0.
        judged_by: Budget and classes that values and constraints were derived under; None where
            they play no part. Optuna is not told.
    """

    state: Literal["complete", "fail"]
    values: tuple[float, ...] | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)
    judged_by: str | None = None

    def __post_init__(self) -> None:
        if (self.state == "complete") != (self.values is not None):
            raise StorageError("A complete outcome has values, a failed one has none.")
        if any(math.isnan(value) for value in (*(self.values or ()), *self.constraints.values())):
            raise StorageError("An outcome holds a value that is not a number.")

    @property
    def feasible(self) -> bool | None:
        """Whether every constraint is kept; None for a failed trial, which shows nothing."""
        if self.state == "fail":
            return None
        return all(value <= 0 for value in self.constraints.values())


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """Why a trial failed: its class, and the lines of a log or message that show it."""

    failure_class: str
    evidence: str


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study: what must not change on resume (fingerprint), and all else (spec)."""

    id: int
    name: str
    created_at: str
    updated_at: str
    fingerprint: Json
    spec: Json
    state: StudyState
    verdict: Json | None


@dataclass(frozen=True, slots=True)
class StudySummary:
    """A line of the list of studies; ``trials`` counts them by state."""

    id: int
    name: str
    state: StudyState
    created_at: str
    updated_at: str
    trials: Mapping[TrialState, int]


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial as stored. What is only known at its end is None while it runs.

    Attributes:
        number: Optuna's trial number.
        candidate: Engine arguments by name.
        replicate_of: Number of the trial that this one repeats.
        timings: Seconds by name (``start_s``, ``warmup_s``, ``replay_s``, ``stop_s``).
        metrics: Values by metric name; None where a metric does not exist.
        intervals: Confidence bounds by metric name.
        engine: KV size, capture sizes, resolved arguments, versions.
        told: Whether Optuna is known to hold the outcome.
    """

    study_id: int
    number: int
    state: TrialState
    phase: str
    fidelity: str
    candidate: Json
    replicate_of: int | None
    started_at: str
    finished_at: str | None
    timings: Mapping[str, float | None] | None
    metrics: Mapping[str, float | None] | None
    intervals: Json | None
    engine: Json | None
    diagnosis: Json | None
    failure_class: str | None
    failure_evidence: str | None
    outcome: Outcome | None
    told: bool
    log_path: str | None
