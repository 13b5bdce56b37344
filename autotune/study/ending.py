"""Why a study has ended, and what of it was left out, as its verdict keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.study.plan import EndedBy
from storage.records import StudyRecord
from storage.repository import Repository

ENDED_BY = "ended_by"
LEFT_OUT = "left_out"


def ended_json(by: EndedBy, *, confirmations: int = 0, holdout_replays: int = 0) -> dict[str, Any]:
    """Return what is stored with a verdict.

    Args:
        by: why the study has ended.
        confirmations: restarts that would have confirmed its winner, for which no time was left.
        holdout_replays: the same of replays of what is held out.
    """
    left_out = {"confirmations": confirmations, "holdout_replays": holdout_replays}
    return {ENDED_BY: by, LEFT_OUT: left_out}


def ending_of(study: StudyRecord) -> dict[str, Any]:
    """Return why a stored study has ended and what it left out, null while it has not."""
    stored: Mapping[str, Any] = study.verdict or {}
    return {name: stored.get(name) for name in (ENDED_BY, LEFT_OUT)}


def out_of_time(study: StudyRecord) -> bool:
    """Whether a stored study has ended by its deadline."""
    return study.state == "finished" and ending_of(study)[ENDED_BY] == "deadline"


def leave_out_replays(repository: Repository, name: str, count: int) -> None:
    """Add to a study's verdict that no time was left for so many replays of what is held out."""
    study = repository.study(name)
    if study.verdict is None or not count:
        return
    left_out = {**study.verdict[LEFT_OUT], "holdout_replays": count}
    ended = {ENDED_BY: "deadline", LEFT_OUT: left_out}
    repository.set_verdict(study.id, {**study.verdict, **ended})
