"""What can be learnt of a study while it runs, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.study.judgement import Judgement
from storage.records import StudyRecord, TrialRecord

RunState = Literal["running", "finished", "interrupted", "failed"]
"""Of one run of a study."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of a study ended.

    Attributes:
        state: not ``running``.
        exit_code: of the command.
        reason: why it did not finish, None if it did.
        hint: what helps, '' where nothing is known.
    """

    state: RunState
    exit_code: int
    reason: str | None = None
    hint: str = ""


class Listener:
    """Whoever follows a study; what is not overridden is not listened to.

    ``trouble`` begins the sentence that says of a fault of this listener's.
    """

    trouble = "one that follows it fails"

    def say(self, text: str) -> None:
        """Take note of what happens between trials, in words."""

    def leased(self) -> None:
        """Take note that the study is ours: nobody else runs it from now on."""

    def due(self, left_s: float) -> None:
        """Take note of a deadline, so many seconds from now."""

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
        """Take note of the study whose trials will follow, and of those that it has already."""

    def judging(self, judge: Callable[[], Judgement | None]) -> None:
        """Take note of who can be asked for the verdict so far; it is made once for each trial."""

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        """Take note of a trial that begins, the ``position``-th of ``total``."""

    def progress(self, body: Mapping[str, Any]) -> None:
        """Take note of progress, as ``autotune.controller.Watcher`` has it."""

    def finished(self, row: TrialRecord) -> None:
        """Take note of a trial that has ended."""

    def changed(self) -> None:
        """Take note that something else is done now than before; follows all but progress."""

    def alive(self) -> None:
        """Take note that the study goes on; follows progress, and comes several times a second.

        Called by what makes progress, or waits within a time limit of its own.
        """

    def stopping(self) -> None:
        """Take note that a signal has come. Runs in its handler."""

    def ended(self, ending: Ending) -> None:
        """Take note of the end. Nothing follows but ``close``."""

    def close(self) -> None:
        """Give back what is held; may wait for some seconds."""
