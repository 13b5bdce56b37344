"""The page on watching has every key that is written, and no other."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any, get_args

from autotune.watching.best import best_json, unconfirmed_json
from autotune.watching.events import EventName, event_json
from autotune.watching.listener import RunState
from autotune.watching.log_file import LogEvent, LogLine
from tests.autotune.cli.judgements import judgement
from tests.autotune.study.records import record, study_record
from tests.autotune.watching.builders import NOON, Clock, progress_on
from tests.test_docs import DOCS, fences

PAGE = DOCS / "watching.md"
FREE = ("candidate", "metrics")
"""Whose keys are names of arguments and metrics."""


def keys_of(value: Any) -> set[str]:
    """Return the keys of a JSON value and of all within it."""
    if not isinstance(value, dict):
        return set()
    below = (keys_of(each) for key, each in value.items() if key not in FREE)
    return set(value).union(*below)


def documents() -> list[dict[str, Any]]:
    """Return the status while a trial runs, and while something else does."""
    trial, work = progress_on(Clock()), progress_on(Clock())
    trial.opened(study_record(), [])
    trial.finished(record(0, state="failed", failure_class="hang"))
    trial.begun(record(1), 1, 8)
    work.progress({"stage": "calibrate", "done": 1, "total": 2})
    return [trial.document(), work.document()]


def written() -> set[str]:
    found = [best_json(judgement("knee", winner=1)), *documents()]
    found.append(unconfirmed_json(judgement("not_converged", winner=1, unconfirmed=2)))
    found.append(event_json("finished", "finished", documents()[0], at=NOON))
    return {each.name for each in fields(LogLine)}.union(*map(keys_of, found))


def tables() -> str:
    """Return the rows of all tables that have keys."""
    text = PAGE.read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if line.startswith("| "))


def test_every_key_that_is_written_has_a_row() -> None:
    shown = set(re.findall(r"`(\w+)`", tables()))
    assert written() - shown == set()


def test_no_row_is_of_a_key_that_is_not_written() -> None:
    rows = [line.split("|")[1] for line in tables().splitlines() if "`" in line.split("|")[1]]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named - written() - set(get_args(EventName)) == set()


def test_every_event_and_state_is_described() -> None:
    shown = set(re.findall(r"`(\w+)`", tables()))
    assert {*get_args(EventName), *get_args(RunState), *get_args(LogEvent)} <= shown


def test_the_example_has_the_keys_of_today() -> None:
    (example,) = (json.loads(each) for each in fences(PAGE, "json"))
    assert list(example) == list(documents()[0])
    assert keys_of(example) <= written()
