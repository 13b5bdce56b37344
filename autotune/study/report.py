"""The morning report: what a study found, what it cost, what went wrong; as facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.study.costs import LoadSamples
from autotune.study.ending import ENDED_BY, ending_of
from autotune.study.gains import Gain, gains_of
from autotune.study.plan import finished_trials
from autotune.study.spending import (
    FailureGroup,
    Spending,
    failures_of,
    slow_spells_of,
    spending_json,
    spending_of,
)
from autotune.study.view import StudyView, label, load_json, shown_verdict
from objectives.budget import margins
from objectives.limits import Limit
from storage.events import EventRecord
from storage.records import StudyRecord


@dataclass(frozen=True, slots=True)
class Margin:
    """How the winner, or without one the nearest candidate, stands to a limit of the budget.

    Attributes:
        limit: with its key, and its ms where it was resolved.
        value: the mean over the trials, None where nothing was measured.
        upper: upper end of its 95 % interval, None where the window is too short for one.
        room: by what share of the limit the value is below it; negative where it is broken.
    """

    limit: Limit
    value: float | None
    upper: float | None
    room: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """When a study ran and what cut it short; times are UTC in ISO 8601.

    Attributes:
        began, last: the first moment that is stored, and the last.
        resumed: when it went on.
        interrupted: numbers of the trials that were cut short by an end.
        ended_by: what ended it, None where that was not recorded.
        working: of one that runs, whether a process may be at work on it: False after a kill.
            None of others.
    """

    began: str
    last: str
    resumed: tuple[str, ...]
    interrupted: tuple[int, ...]
    ended_by: str | None
    working: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """All that the report says; the verdict itself is the view's."""

    view: StudyView
    margins: tuple[Margin, ...]
    gains: tuple[Gain, ...]
    spending: Spending
    failures: tuple[FailureGroup, ...]
    slow_spells: tuple[int, ...]
    course: Course


def make_report(
    view: StudyView,
    events: Sequence[EventRecord],
    load_samples: LoadSamples,
    *,
    working: bool | None = None,
) -> Report:
    """Gather what is stored of a study, which may be empty, running or simulated.

    Args:
        view: the study, judged.
        events: of it.
        load_samples: of its trials.
        working: whether a process may be at work on it; None where that is not known.
    """
    return Report(
        view=view,
        margins=tuple(_margins(view)),
        gains=tuple(gains_of(view, load_samples)),
        spending=spending_of(view, events),
        failures=failures_of(view.trials),
        slow_spells=slow_spells_of(view.trials),
        course=_course(view.study, events, working),
    )


def report_json(
    report: Report, *, verdict: Sequence[str], advice: Sequence[str]
) -> dict[str, Any]:
    """Return a report as plain JSON values.

    Args:
        report: to be shown.
        verdict: its sentences.
        advice: what to do next, in sentences.
    """
    view = report.view
    return {
        "study": view.study.name,
        "state": view.study.state,
        **label(view.study),
        **load_json(view.study),
        "budget": view.study.spec["budget"],
        "finished_trials": finished_trials(view.trials),
        "asked_trials": int(view.study.spec["trials"]),
        "verdict": shown_verdict(view),
        "sentences": list(verdict),
        "margins": [_margin_json(each) for each in report.margins],
        "gains": [asdict(each) for each in report.gains],
        "spending": spending_json(report.spending),
        "failures": [_failure_json(each) for each in report.failures],
        "slow_spells": list(report.slow_spells),
        "course": asdict(report.course),
        "next": list(advice),
    }


def _margins(view: StudyView) -> list[Margin]:
    judgement = view.judgement
    if judgement is None:
        return []
    index = judgement.nearest if judgement.winner is None else judgement.winner
    if index is None:
        return []
    cell = judgement.cells[index]
    over = margins(judgement.budget, cell.metrics)
    return [
        Margin(
            limit, cell.metrics.get(limit.key), _upper(cell.intervals, limit), _room(over, limit)
        )
        for limit in judgement.budget.limits
    ]


def _upper(intervals: Mapping[str, Any], limit: Limit) -> float | None:
    bound: float | None = (intervals.get(limit.key) or (None, None))[1]
    return bound


def _room(over: Mapping[str, float | None], limit: Limit) -> float | None:
    by = over[limit.key]
    return None if by is None else -by


def _course(study: StudyRecord, events: Sequence[EventRecord], working: bool | None) -> Course:
    ended_by = ending_of(study)[ENDED_BY]
    return Course(
        began=study.created_at,
        last=study.updated_at,
        resumed=tuple(event.at for event in events if event.kind == "resumed"),
        interrupted=tuple(
            int(event.detail["number"]) for event in events if event.kind == "interrupted"
        ),
        ended_by=None if ended_by is None else str(ended_by),
        working=working if study.state == "running" else None,
    )


def _margin_json(margin: Margin) -> dict[str, Any]:
    return {
        "limit": margin.limit.key,
        "limit_ms": margin.limit.limit_ms,
        "value_ms": margin.value,
        "upper_ms": margin.upper,
        "room": margin.room,
    }


def _failure_json(group: FailureGroup) -> dict[str, Any]:
    return {
        "class": group.failure_class,
        "trials": list(group.numbers),
        "evidence": group.evidence,
    }
