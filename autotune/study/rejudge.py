"""A study resumed with another budget or other classes: no new trials, but a new judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.candidates.diagnosis import Load
from autotune.study.counted import bounds_of, breaks_for_certain, censored
from autotune.study.outcomes import Yardstick
from autotune.study.replays import LATE, late_client
from objectives.samples import RequestSamples
from objectives.steps import request_arrays
from storage.records import Json, TrialFailure, TrialRecord
from storage.repository import Repository

JUDGED_STATES = ("complete", "infeasible", "invalid")


def rejudge(repository: Repository, study_id: int, yardstick: Yardstick) -> tuple[int, ...]:
    """Judge again what was judged by another budget or other classes, from the stored samples.

    Whether a replay counts although the client sent late depends on the TTFT limit, so that a
    looser one makes ``invalid`` trials ``complete`` and a stricter one the reverse. Failures
    that a candidate causes stay infeasible and are told by the new budget. So does a replay that
    was cut short, if what was seen of it breaks the new budget for certain; else it becomes
    ``interrupted``, to be measured whole. The rows are then what they would be had the budget
    always been this one, whichever came in between. What Optuna holds is not touched; see
    ``storage.study.rebuild_if_stale``.

    Each trial carries what it was judged by, so that a killed call is finished by the next
    one, and undone by one with the earlier budget.

    Returns:
        The numbers of the trials that were judged again; without any nothing is written.

    Raises:
        ObjectiveError: a relative limit on what the baseline has no finite value of; nothing
            is written then.
    """
    rows: list[TrialRecord] = []
    changed: list[TrialRecord] = []
    for row in repository.trials(study_id):
        if is_judged_otherwise(row, yardstick):
            changed.append(_judged(repository, row, yardstick, rows))
            rows.append(changed[-1])
        else:
            rows.append(row)
    for row in changed:
        _store(repository, row)
    return tuple(row.number for row in changed)


def is_judged_otherwise(row: TrialRecord, yardstick: Yardstick) -> bool:
    """Whether a row has a judgement, and not by this yardstick."""
    judged = row.state in JUDGED_STATES or censored(row) is not None
    return judged and row.outcome is not None and row.outcome.judged_by != yardstick.text


def _judged(
    repository: Repository, row: TrialRecord, yardstick: Yardstick, earlier: Sequence[TrialRecord]
) -> TrialRecord:
    """Return the row as it would have been stored had the budget been this one."""
    cut = censored(row)
    if cut is not None:
        return _cut_short(row, cut, yardstick, earlier)
    if row.state == "infeasible":
        return replace(row, outcome=yardstick.infeasible(earlier))
    if row.metrics is None:
        return replace(row, outcome=yardstick.uncounted())
    arrays = request_arrays(repository.samples(row.study_id, row.number))
    measurement = yardstick.measure(RequestSamples.from_arrays(arrays))
    measured = replace(
        row,
        metrics=measurement.metrics,
        intervals={name: [i.low, i.high] for name, i in measurement.intervals.items()},
        diagnosis=yardstick.diagnosis(
            Load(**(row.engine or {})["load"]), row.candidate, measurement.metrics, earlier
        ).to_json(),
    )
    if row.state == "invalid" and row.failure_class != LATE:
        return replace(measured, outcome=yardstick.uncounted())
    late = yardstick.late(measurement, earlier)
    if late is not None:
        return replace(
            measured,
            state="invalid",
            outcome=yardstick.uncounted(),
            failure_class=late.failure_class,
            failure_evidence=late.evidence,
        )
    return replace(
        measured,
        state="complete",
        outcome=yardstick.measured(measurement, earlier, row.candidate, row.fidelity),
        failure_class=None,
        failure_evidence=None,
    )


def _cut_short(
    row: TrialRecord, cut: Json, yardstick: Yardstick, earlier: Sequence[TrialRecord]
) -> TrialRecord:
    budget, bounds = yardstick.absolute_budget(earlier), bounds_of(cut, yardstick.classes)
    lag_ms = (row.engine or {}).get("send_lag_p99_ms")
    late = None if lag_ms is None else late_client(float(lag_ms), bounds, budget)
    if late is not None:
        return replace(
            row,
            state="invalid",
            outcome=yardstick.uncounted(),
            failure_class=late.failure_class,
            failure_evidence=late.evidence,
        )
    lost = breaks_for_certain(row, budget, yardstick.classes)
    return replace(
        row,
        state="infeasible" if lost else "interrupted",
        outcome=yardstick.censored(bounds, cut["sent"] / cut["requests"], earlier)
        if lost
        else yardstick.uncounted(),
        failure_class=None,
        failure_evidence=None,
    )


def _store(repository: Repository, row: TrialRecord) -> None:
    if row.state == "running" or row.outcome is None:
        raise ValueError(f"trial {row.number} has no judgement to be stored")
    failure = None
    if row.failure_class is not None:
        failure = TrialFailure(row.failure_class, row.failure_evidence or "")
    repository.rejudge_trial(
        row.study_id,
        row.number,
        state=row.state,
        outcome=row.outcome,
        metrics=row.metrics,
        intervals=row.intervals,
        failure=failure,
        diagnosis=row.diagnosis,
    )
