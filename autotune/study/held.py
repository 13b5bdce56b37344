"""What replays of held-out traffic said, as a study keeps it and as it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from autotune.candidates.lattice import Candidate, cell_key
from autotune.engine.protocol import DETERMINISTIC_FAILURES
from autotune.study.costs import mean_of_trials, widest
from autotune.traffic.model import Trace
from objectives.budget import resolve
from objectives.classes import LengthClass, classes_text
from objectives.errors import ObjectiveError
from objectives.limits import Budget, Limit, parse_budget
from storage.records import StudyRecord

KEY = "holdout"
"""Of a study's spec, under which all this is stored."""

REPEATS = 2
"""Replays of each candidate, so that one slow one does not decide."""

STARTS = 2 * REPEATS
"""Engines that start for it at most, if nothing has to be repeated."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldReplay:
    """One replay: values and bounds by metric, as of a trial, and how many requests failed."""

    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Any]
    failed_requests: int


@dataclass(frozen=True, slots=True, eq=False)
class HeldResult:
    """All replays of one candidate.

    Attributes:
        candidate: the engine arguments.
        replays: those that count.
        failure: ``class`` and ``evidence`` of the latest that does not; None once one counts
            after it.
    """

    candidate: Candidate
    replays: tuple[HeldReplay, ...] = ()
    failure: Mapping[str, str] | None = None

    @property
    def cannot_run(self) -> bool:
        """Whether the candidate itself is to blame for its failure, and would fail again."""
        return self.failure is not None and self.failure["class"] in DETERMINISTIC_FAILURES

    @property
    def metrics(self) -> dict[str, float | None]:
        """Geometric means over the replays, by name."""
        measured = [replay.metrics for replay in self.replays]
        names = dict.fromkeys(name for metrics in measured for name in metrics)
        return {name: mean_of_trials([each.get(name) for each in measured]) for name in names}

    @property
    def intervals(self) -> dict[str, list[float | None]]:
        """From the lowest to the highest bound of any of the replays."""
        return widest([replay.intervals for replay in self.replays]) if self.replays else {}

    @property
    def failed_requests(self) -> int:
        """In all of the replays."""
        return sum(replay.failed_requests for replay in self.replays)

    def met(self, limit: Limit) -> bool | None:
        """Whether a limit in ms is met; None without a replay."""
        if not self.replays:
            return None
        value = self.metrics.get(limit.key)
        return value is not None and limit.limit_ms is not None and value <= limit.limit_ms

    def to_json(self) -> dict[str, Any]:
        return {
            "candidate": dict(self.candidate),
            "replays": [asdict(replay) for replay in self.replays],
            "failure": None if self.failure is None else dict(self.failure),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        replays = tuple(HeldReplay(**replay) for replay in stored["replays"])
        return cls(stored["candidate"], replays, stored["failure"])


@dataclass(frozen=True, slots=True, eq=False)
class HeldPart:
    """The traffic that is held out, and what is known of candidates on it.

    Attributes:
        share: of the window's time, as the setting has it.
        sha256: of the traffic.
        requests: how many.
        seconds: up to the last arrival.
        attempts: replays that ended, those that do not count included.
        classes: of prompt length, as text, that values are of.
        results: one a candidate.
    """

    share: str
    sha256: str
    requests: int
    seconds: float
    classes: str
    attempts: int = 0
    results: tuple[HeldResult, ...] = ()

    @classmethod
    def of(cls, share: str, trace: Trace, classes: tuple[LengthClass, ...]) -> Self:
        return cls(
            share, trace.sha256, len(trace.requests), trace.duration_s, classes_text(classes)
        )

    def with_results_of(self, other: HeldPart | None) -> HeldPart:
        """Take over what was measured on the same traffic, with the same classes."""
        if other is None or (other.sha256, other.classes) != (self.sha256, self.classes):
            return self
        return replace(self, attempts=other.attempts, results=other.results)

    def result(self, candidate: Candidate) -> HeldResult:
        """Return what is known of a candidate, an empty one if nothing is."""
        key = cell_key(candidate)
        known = (each for each in self.results if cell_key(each.candidate) == key)
        return next(known, HeldResult(candidate))

    def with_result(self, result: HeldResult, *, attempts: int) -> HeldPart:
        """Put one in, in the place of that of the same candidate, after so many more attempts."""
        key = cell_key(result.candidate)
        others = tuple(each for each in self.results if cell_key(each.candidate) != key)
        return replace(self, attempts=self.attempts + attempts, results=(*others, result))

    def to_json(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "sha256": self.sha256,
            "requests": self.requests,
            "seconds": self.seconds,
            "classes": self.classes,
            "attempts": self.attempts,
            "results": [result.to_json() for result in self.results],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        results = tuple(map(HeldResult.from_json, stored["results"]))
        return cls(**{**stored, "results": results})


def held_part(study: StudyRecord) -> HeldPart | None:
    """Return what a study holds out, None if nothing."""
    stored = study.spec.get(KEY)
    return None if stored is None else HeldPart.from_json(stored)


@dataclass(frozen=True, slots=True, eq=False)
class Confirmed:
    """How a candidate stands to the budget on the traffic that is held out.

    Attributes:
        part: that traffic.
        budget: limits in ms; relative ones are relative to the baseline on this very traffic.
        unresolved: whether some are left out, as the baseline has no value there.
        winner: of the candidate.
        baseline: of the baseline.
    """

    part: HeldPart
    budget: Budget
    unresolved: bool
    winner: HeldResult
    baseline: HeldResult

    @classmethod
    def of(cls, study: StudyRecord, candidate: Candidate) -> Self | None:
        """Judge a candidate by the study's budget; None if nothing is held out."""
        part = held_part(study)
        if part is None:
            return None
        baseline, given = part.result(study.fingerprint["baseline"]), study.spec["budget"]
        budget, unresolved = parse_budget(given), False
        try:
            budget = resolve(budget, baseline.metrics)
        except ObjectiveError:
            # Without a finite value of the baseline nothing can be relative to it.
            budget, unresolved = Budget(budget.absolute), True
        return cls(part, budget, unresolved, part.result(candidate), baseline)

    @property
    def of_baseline(self) -> bool:
        """Whether the candidate is the baseline itself."""
        return cell_key(self.winner.candidate) == cell_key(self.baseline.candidate)

    @property
    def met(self) -> bool | None:
        """Whether the candidate meets the budget there; None if that is not known."""
        return self.met_by(self.winner)

    def met_by(self, result: HeldResult) -> bool | None:
        """Return the same of another candidate's result."""
        if result.cannot_run or result.failed_requests:
            return False
        if any(result.met(limit) is False for limit in self.budget.limits):
            return False
        unknown = not result.replays or self.unresolved or not self.budget.limits
        return None if unknown else True

    def shown(self) -> dict[str, Any]:
        """Return it as programs are told it; what is stored are the results alone."""
        return {
            "share": self.part.share,
            "trace_sha256": self.part.sha256,
            "requests": self.part.requests,
            "duration_s": self.part.seconds,
            "met": self.met,
            "winner": self._result(self.winner),
            "baseline": self._result(self.baseline),
        }

    def _result(self, result: HeldResult) -> dict[str, Any]:
        metrics, intervals = result.metrics, result.intervals
        return {
            "candidate": dict(result.candidate),
            "replays": len(result.replays),
            "limits": [
                {
                    "limit": limit.key,
                    "limit_ms": limit.limit_ms,
                    "value_ms": metrics.get(limit.key),
                    "upper_ms": (intervals.get(limit.key) or (None, None))[1],
                    "met": result.met(limit),
                }
                for limit in self.budget.limits
            ],
            "failed_requests": result.failed_requests,
            "failure": None if result.failure is None else dict(result.failure),
            "metrics": metrics,
            "intervals": intervals,
        }
