from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.watching.listener import Ending, Listener
from autotune.watching.watchers import Watchers
from storage.records import TrialRecord
from tests.autotune.study.records import record, study_record


class Notes(Listener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, text: str) -> None:
        self.heard.append(text)

    def leased(self) -> None:
        self.heard.append("leased")

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        self.heard.append(f"begun {row.number}, {position} of {total}")

    def progress(self, body: Mapping[str, Any]) -> None:
        self.heard.append(f"progress {body['done']}")

    def finished(self, row: TrialRecord) -> None:
        self.heard.append(f"finished {row.number}")

    def changed(self) -> None:
        self.heard.append("changed")

    def alive(self) -> None:
        self.heard.append("alive")

    def stopping(self) -> None:
        self.heard.append("stopping")

    def due(self, left_s: float) -> None:
        self.heard.append(f"due {left_s}")

    def ended(self, ending: Ending) -> None:
        self.heard.append(f"ended {ending.exit_code}")

    def close(self) -> None:
        self.heard.append("closed")


class Broken(Listener):
    """Fails whenever it hears of a change."""

    trouble = "its file cannot be written"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def changed(self) -> None:
        raise self._error


def tell_all(watchers: Watchers) -> None:
    watchers.leased()
    watchers.due(60.0)
    watchers.opened(study_record(), [])
    watchers.judging(lambda: None)
    watchers.begun(record(0), 1, 8)
    watchers.progress({"stage": "replay", "done": 3, "total": 9})
    watchers.finished(record(0))
    watchers.alive()
    watchers.stopping()
    watchers.ended(Ending("finished", 0))


HEARD = [
    "leased", "changed", "due 60.0", "changed", "begun 0, 1 of 8", "changed", "progress 3",
    "alive", "finished 0", "changed", "alive", "stopping", "ended 0", "changed", "closed",
]  # fmt: skip


def test_everybody_hears_everything_and_then_that_something_changed() -> None:
    listeners = [Notes(), Listener(), Notes()]
    tell_all(Watchers(listeners, mask=str))
    assert [each.heard for each in listeners if isinstance(each, Notes)] == [HEARD, HEARD]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "/x"), "No space left on device"),
        (ValueError("odd s3cret"), "ValueError: odd ***"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_fault_is_said_once_and_hurts_nobody(error: Exception, words: str) -> None:
    notes = Notes()
    watchers = Watchers([Broken(error), notes], mask=lambda text: text.replace("s3cret", "***"))
    tell_all(watchers)
    line = f"its file cannot be written: {words}; the study goes on"
    assert notes.heard == [HEARD[0], line, *HEARD[1:]]


def test_one_that_cannot_even_be_told_of_its_fault_is_left_alone() -> None:
    class Mute(Broken):
        def say(self, text: str) -> None:
            raise OSError(5, text)

    notes = Notes()
    tell_all(Watchers([Mute(OSError(5, "Input/output error")), notes], mask=str))
    assert [each for each in notes.heard if each not in HEARD] == [
        "its file cannot be written: Input/output error; the study goes on"
    ]
