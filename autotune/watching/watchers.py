"""Several listeners as one watcher, none of which can hurt the study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.study.judgement import Judgement
from autotune.watching.listener import Ending, Listener
from storage.records import StudyRecord, TrialRecord


class Watchers:
    """Tells every listener what a study tells its watcher, in order.

    What one of them raises is said once to the others, and the study goes on.

    Args:
        listeners: in order.
        mask: returns what others say without secrets.
    """

    def __init__(self, listeners: Sequence[Listener], *, mask: Callable[[str], str]) -> None:
        self._listeners = tuple(listeners)
        self._mask = mask
        self._in_trouble: set[int] = set()

    def say(self, text: str) -> None:
        self._tell(lambda each: each.say(text))

    def leased(self) -> None:
        self._tell(lambda each: each.leased())
        self._tell(lambda each: each.changed())

    def due(self, left_s: float) -> None:
        self._tell(lambda each: each.due(left_s))

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
        self._tell(lambda each: each.opened(study, trials))
        self._tell(lambda each: each.changed())

    def judging(self, judge: Callable[[], Judgement | None]) -> None:
        self._tell(lambda each: each.judging(judge))

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        self._tell(lambda each: each.begun(row, position, total))
        self._tell(lambda each: each.changed())

    def progress(self, body: Mapping[str, Any]) -> None:
        self._tell(lambda each: each.progress(body))
        self._tell(lambda each: each.alive())

    def finished(self, row: TrialRecord) -> None:
        self._tell(lambda each: each.finished(row))
        self._tell(lambda each: each.changed())

    def alive(self) -> None:
        self._tell(lambda each: each.alive())

    def stopping(self) -> None:
        self._tell(lambda each: each.stopping())

    def ended(self, ending: Ending) -> None:
        """Tell how the study ended, then let all of them finish."""
        self._tell(lambda each: each.ended(ending))
        self._tell(lambda each: each.changed())
        self._tell(lambda each: each.close())

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        for number, each in enumerate(self._listeners):
            try:
                tell(each)
            # Whatever it is: no file and no message is worth a night of measurements.
            except Exception as error:  # noqa: BLE001
                if number in self._in_trouble:
                    continue
                self._in_trouble.add(number)
                self.say(f"{each.trouble}: {self._mask(words_of(error))}; the study goes on")


def words_of(error: Exception) -> str:
    """Return in one line what went wrong."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
