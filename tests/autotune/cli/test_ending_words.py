from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.cli.ending_words import ending_lines
from autotune.study.ending import ended_json, ending_of
from autotune.study.view import StudyView
from tests.autotune.study.records import record, study_record


def view(verdict: dict[str, Any] | None, *, state: Any = "finished") -> StudyView:
    study = replace(study_record(trials=24), state=state, verdict=verdict)
    return StudyView(study, (record(0), record(1), record(2, state="failed")), None)


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ({}, ""),
        ({"confirmations": 1}, " Left out: 1 restart to confirm the winner."),
        (
            {"confirmations": 4, "holdout_replays": 2},
            " Left out: 4 restarts to confirm the winner and 2 replays of what is held out.",
        ),
    ],
)
def test_what_a_deadline_leaves_out_is_said(left_out: dict[str, int], words: str) -> None:
    ended = view(ended_json("deadline", **left_out))
    assert ending_lines(ended) == [f"Ended by its deadline, with 2 of 24 trials.{words}"]


@pytest.mark.parametrize("by", ["trials", "settled", "exhausted"])
def test_of_another_end_nothing_is_said(by: Any) -> None:
    assert ending_lines(view(ended_json(by))) == []


def test_a_study_that_goes_on_has_not_ended() -> None:
    running = view(ended_json("deadline"), state="running")
    assert ending_lines(running) == []
    assert ending_of(view(None).study) == {"ended_by": None, "left_out": None}
