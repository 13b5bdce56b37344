"""From what a trial yielded to what is stored of it, and told to Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.engine.protocol import Failure
from autotune.study.outcomes import Yardstick
from autotune.study.replays import late_client
from autotune.study.runner import Result
from objectives.censoring import Censored, lower_bounds
from objectives.classes import classes_text
from objectives.latency import send_lag_ms
from objectives.statistics import aggregate
from storage.records import FinishedState, Json, Outcome, TrialFailure, TrialRecord


@dataclass(frozen=True, slots=True)
class Earned:
    """What a trial comes to by a yardstick; see ``storage.records.TrialRecord``.

    ``engine`` is what is to be known of the measurement beside the engine itself.
    """

    state: FinishedState
    outcome: Outcome
    metrics: Mapping[str, float | None] | None = None
    intervals: Json | None = None
    diagnosis: Json | None = None
    failure: TrialFailure | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)


def earn(
    yardstick: Yardstick, result: Result, row: TrialRecord, earlier: Sequence[TrialRecord]
) -> Earned:
    """Judge a trial that ran.

    A replay that a slow spell of the host has hit, or whose client was late, does not count. One
    that was cut short is infeasible, and has no metrics but lower bounds.

    Args:
        yardstick: what it is judged by.
        result: of the trial.
        row: of the trial, as it was begun.
        earlier: the trials before.
    """
    cut = result.replayed.censored
    if cut is not None:
        return _cut_short(yardstick, result, cut, earlier)
    measurement = yardstick.measure(result.replayed.samples)
    late = yardstick.late(measurement, earlier)
    fault = result.spell or late
    return Earned(
        state="complete" if fault is None else "invalid",
        outcome=yardstick.measured(measurement, earlier, row.candidate, row.fidelity)
        if fault is None
        else yardstick.uncounted(),
        metrics=measurement.metrics,
        intervals={name: [i.low, i.high] for name, i in measurement.intervals.items()},
        diagnosis=yardstick.diagnosis(
            result.load, row.candidate, measurement.metrics, earlier
        ).to_json(),
        failure=None if fault is None else _stored(fault),
        engine={
            "requests": measurement.requests,
            "failed_requests": measurement.failed_requests,
            "busy_s": measurement.busy_s,
            "useful_tokens": measurement.useful_tokens,
            "send_lag_p99_ms": measurement.send_lag_p99_ms,
        },
    )


def _cut_short(
    yardstick: Yardstick, result: Result, cut: Censored, earlier: Sequence[TrialRecord]
) -> Earned:
    samples = result.replayed.samples
    bounds = lower_bounds(samples, cut_s=cut.cut_s, classes=yardstick.classes)
    lag_ms = aggregate(send_lag_ms(samples), "p99") or 0.0
    if result.spell is not None:
        return Earned("invalid", yardstick.uncounted(), failure=_stored(result.spell))
    bound_ms = cut.lost.at_least_ms
    engine = {
        "requests": cut.requests,
        "send_lag_p99_ms": lag_ms,
        "censored": {
            "limit": cut.lost.key,
            "limit_ms": cut.lost.limit_ms,
            "bound_ms": bound_ms if math.isfinite(bound_ms) else None,
            "at_s": cut.cut_s,
            "sent": cut.sent,
            "ended": cut.ended,
            "requests": cut.requests,
            "classes": classes_text(yardstick.classes),
            "bounds": bounds,
        },
    }
    late = late_client(lag_ms, bounds, yardstick.absolute_budget(earlier))
    if late is not None:
        return Earned("invalid", yardstick.uncounted(), failure=_stored(late), engine=engine)
    return Earned("infeasible", yardstick.censored(bounds, cut.sent_share, earlier), engine=engine)


def _stored(fault: Failure) -> TrialFailure:
    return TrialFailure(fault.failure_class, fault.evidence)


def engine_json(result: Result) -> dict[str, Any]:
    """Return what is stored of the engine and of how it was measured."""
    replayed = result.replayed
    return {
        **result.started.info.to_json(),
        "ground": result.started.ground.to_json(),
        "load": result.load.to_json(),
        "warmup": replayed.warmup.to_json(),
        "hardware": None if result.hardware is None else result.hardware.to_json(),
        "errors": list(replayed.errors),
    }
