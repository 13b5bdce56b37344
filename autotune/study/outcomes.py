"""From a measurement to what Optuna is told of it: by which budget, and relative to whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from autotune.candidates.diagnosis import Diagnosis, Load, diagnose
from autotune.candidates.lattice import Candidate, cell_key
from autotune.engine.protocol import Failure
from autotune.study.costs import costs_of, objective_names
from autotune.study.counted import is_restart_of
from autotune.study.job import Job
from autotune.study.replays import client_bound
from objectives.budget import margins, resolve
from objectives.classes import LengthClass, classes_text
from objectives.limits import Budget
from objectives.measurement import Measurement, measure
from objectives.samples import RequestSamples
from objectives.utilization import Work
from storage.records import Outcome, TrialRecord

CLIPPED_AT = 10.0
"""What is infinite or failed is told as this many times the budget, or as the worst seen."""

NEVER_SEEN = 1e9
"""The cost told of a failure while nothing was measured yet."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What results of a study are judged by.

    The same rows always yield the same outcome, whether it is computed when a trial ends or
    again under another budget. ``rows`` are the trials before the one that is judged.

    Attributes:
        budget: limits, relative ones unresolved.
        classes: of prompt length.
        baseline: whose first complete restart relative limits are multiples of.
        work: what the model computes, None where nobody can say.
        best_flops_per_s: what utilization is a share of, None without a calibration.
    """

    budget: Budget
    classes: tuple[LengthClass, ...]
    baseline: Candidate
    work: Work | None = None
    best_flops_per_s: float | None = None

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(job.budget, job.classes, job.baseline, job.info.work, job.best_flops_per_s)

    @property
    def text(self) -> str:
        """Budget and classes as text, stored with each outcome that they led to."""
        return f"{self.budget.text} | {classes_text(self.classes)}".strip()

    def baseline_metrics(self, rows: Iterable[TrialRecord]) -> Mapping[str, float | None] | None:
        """Return the metrics of the baseline's first complete restart, None before it."""
        own = (r for r in rows if r.state == "complete" and is_restart_of(r, self.baseline))
        return next((row.metrics for row in own), None)

    def absolute_budget(self, rows: Iterable[TrialRecord]) -> Budget:
        """Return the limits in ms: all of them once the baseline was measured."""
        metrics = self.baseline_metrics(rows)
        return Budget(self.budget.absolute) if metrics is None else resolve(self.budget, metrics)

    def measure(self, samples: RequestSamples) -> Measurement:
        """Condense a replay, whether or not there is a baseline to be relative to yet."""
        return measure(
            samples,
            classes=self.classes,
            budget=self.budget,
            work=self.work,
            best_flops_per_s=self.best_flops_per_s,
        )

    def late(self, measurement: Measurement, rows: Iterable[TrialRecord]) -> Failure | None:
        """Return a failure if the client sent too late for the replay to count, else None."""
        return client_bound(measurement, self.absolute_budget(rows))

    def diagnosis(
        self,
        load: Load,
        candidate: Candidate,
        metrics: Mapping[str, float | None],
        rows: Iterable[TrialRecord],
    ) -> Diagnosis:
        """Return what bound a measured trial, against the baseline where there is one yet."""
        baseline = self.baseline_metrics(rows) or {}
        return diagnose(
            load,
            candidate,
            tpot_ratio=_ratio(metrics, baseline, "tpot_p95"),
            work_ratio=_ratio(metrics, baseline, "tokens_per_busy_s"),
        )

    def measured(
        self,
        measurement: Measurement,
        rows: Iterable[TrialRecord],
        candidate: Candidate,
        fidelity: str = "restart",
    ) -> Outcome:
        """Return the outcome of a replay of ``candidate`` that counts.

        Where the baseline's own replay does not count under this budget, there is nothing that
        relative limits could be relative to, and Optuna is told of the others alone.

        Raises:
            ObjectiveError: a relative limit on what the baseline has no finite value of.
        """
        earlier = tuple(rows)
        first = fidelity == "restart" and cell_key(candidate) == cell_key(self.baseline)
        if first and self.baseline_metrics(earlier) is None:
            budget = resolve(self.budget, measurement.metrics)
        else:
            budget = self.absolute_budget(earlier)
        broken = margins(budget, measurement.metrics)
        constraints = {name: _finite(value) for name, value in broken.items()}
        constraints["failed_requests"] = measurement.failed_requests / measurement.requests
        costs = costs_of(measurement.metrics, objective_names(self.budget))
        # A latency that the traffic does not have, such as TPOT of one-token answers, is the
        # same for every candidate: any constant serves Optuna.
        known = [1.0 if math.isnan(cost) else cost for cost in costs]
        values = [
            min(cost, ceiling) if math.isinf(cost) else cost
            for cost, ceiling in zip(known, self._ceilings(earlier), strict=True)
        ]
        return Outcome("complete", tuple(values), constraints, judged_by=self.text)

    def infeasible(self, rows: Iterable[TrialRecord]) -> Outcome:
        """Return the outcome of a failure that the candidate causes: never that it was fast."""
        # Optuna ranks what is infeasible by the sum of its constraints: no measured trial, late
        # as it may be, may look worse than one that could not run.
        worst = CLIPPED_AT * (len(self.budget.limits) + 1)
        ceilings = self._ceilings(tuple(rows))
        return Outcome("complete", ceilings, {"failure": worst}, judged_by=self.text)

    def censored(
        self, bounds: Mapping[str, float | None], share_sent: float, rows: Iterable[TrialRecord]
    ) -> Outcome:
        """Return the outcome of a replay that was cut short as its budget was lost.

        What is told of a limit that it breaks grows with what was left of the window, so that
        of two candidates the one that was cut short sooner ranks behind. A limit that it does
        not break for certain yet is told as just kept.

        Args:
            bounds: values that the whole replay would have had at least, in ms by their keys.
            share_sent: of the requests of the window, 0 to 1.
            rows: of the trials before.
        """
        earlier = tuple(rows)
        broken = margins(self.absolute_budget(earlier), bounds)
        constraints = {
            name: min(margin + 1 - share_sent, CLIPPED_AT) if margin and margin > 0 else 0.0
            for name, margin in broken.items()
        }
        return Outcome("complete", self._ceilings(earlier), constraints, judged_by=self.text)

    def uncounted(self) -> Outcome:
        """Return the outcome of a replay that does not count."""
        return Outcome("fail", judged_by=self.text)

    def _ceilings(self, rows: tuple[TrialRecord, ...]) -> tuple[float, ...]:
        """Return the larger of 10 times the budget and the worst seen, for Optuna alone."""
        budget = self.absolute_budget(rows)
        told = [row.outcome.values for row in rows if row.outcome and row.outcome.values]
        ceilings = []
        for column, name in enumerate(objective_names(self.budget)):
            limits = [x.limit_ms for x in budget.limits if x.key == name and x.limit_ms]
            seen = [values[column] for values in told]
            clipped = [CLIPPED_AT * min(limits)] if limits else []
            ceilings.append(max([*seen, *clipped], default=NEVER_SEEN))
        return tuple(ceilings)


def _ratio(
    metrics: Mapping[str, float | None], baseline: Mapping[str, float | None], name: str
) -> float | None:
    own, base = metrics.get(name), baseline.get(name)
    if not own or not base or not math.isfinite(own) or not math.isfinite(base):
        return None
    return own / base


def _finite(margin: float | None) -> float:
    """Return a constraint for Optuna: a limit that cannot be checked is not kept."""
    return CLIPPED_AT if margin is None else min(margin, CLIPPED_AT)
