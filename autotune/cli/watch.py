"""A study followed on a screen: a live display on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, Self, TextIO, cast

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.cli.caveats import few_requests_lines
from autotune.cli.files import TolerantStream
from autotune.cli.signals import shown_by
from autotune.cli.tables import console, duration, limits
from autotune.cli.trial_table import TrialTable
from autotune.cli.words import calibration_lines
from autotune.study.plan import finished_trials
from autotune.study.view import absolute_budget
from autotune.watching.listener import Listener
from autotune.watching.log_file import Level, LogEvent
from autotune.watching.remaining import time_left
from storage.records import StudyRecord, TrialRecord

HEARTBEAT_S = 60.0
"""How often a trial that runs gives a sign of life where there is no terminal."""

_PARTS = {
    "wait": "waits",
    "start": "engine starts",
    "calibrate": "calibration",
    "warmup": "warm-up",
    "replay": "replay",
    "stop": "engine stops",
}
_UNTIL = {"wait": ", until a slow spell is over"}
_COUNTED = {"warmup": "requests", "replay": "requests", "calibrate": "steps"}
"""What is counted in the parts of which that can be said."""
_REPEATS = ("confirm", "sentinel")
"""Phases that repeat other trials by design, and not because one went wrong."""

_BAR_WIDTH = 30
_ROOM_FOR_A_BAR = 70


@dataclass(slots=True)
class _Study:
    """The study on the screen, its trials so far, and whether its table was begun."""

    record: StudyRecord
    trials: list[TrialRecord]
    table: TrialTable
    begun: bool = False

    def left(
        self, trials: int, row: TrialRecord, part: str, elapsed_s: float, due_s: float
    ) -> str:
        """Return in words how long so many trials still take, ``row`` the first of them.

        ``due_s`` is the time until the deadline.
        """
        left = time_left(
            self.record, self.trials, row, to_come=trials, part=part, elapsed_s=elapsed_s
        )
        if left is None:
            return "simulated"
        if left.seconds > due_s:
            return f"{duration(max(0.0, due_s))} left until the deadline"
        if left.measured:
            return f"about {duration(left.seconds)} left"
        return f"about {duration(left.seconds)} and engine starts left"

    def row(self, trial: TrialRecord) -> list[str]:
        return self.table.row(trial, absolute_budget(self.record, self.trials))


@dataclass(slots=True)
class _Running:
    """What runs now; ``left`` says how long the rest takes, '' where nobody knows.

    ``round`` counts the passes of a warm-up, from 1.
    """

    label: str
    since_s: float
    left: Callable[[str, float], str] = field(default=lambda _part, _elapsed_s: "")
    part: str = "start"
    done: int = 0
    total: int | None = None
    round: int = 1

    def take(self, part: str, done: int, total: int, now_s: float) -> None:
        """Take note of how far it is; where fewer are done than before, another pass began."""
        if self.part != part:
            self.part, self.since_s, self.round = part, now_s, 1
        elif done < self.done:
            self.round += 1
        self.done, self.total = done, total

    @property
    def count(self) -> str:
        """How many requests or steps are done, '' where there are none."""
        if self.total is None or self.part not in _COUNTED:
            return ""
        of_pass = f" of pass {self.round}" if self.round > 1 else ""
        return f"{self.done} of {self.total} {_COUNTED[self.part]}{of_pass}"


class Recorder(Protocol):
    """Keeps the lines that a screen shows; see ``autotune.watching.log_file``."""

    def __call__(self, text: str, *, level: Level, event: LogEvent, trial: int | None) -> None: ...


class ScreenWatcher(Listener):
    """Reports a study on stderr; a context manager, so that what moves is always taken down.

    Args:
        clock: seconds that only grow.
        record: is given every line too, and on a terminal those that a display stands for.
        mask: returns a line without secrets: engines and drivers quote what they were given.
    """

    trouble = "its progress cannot be shown"

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        record: Recorder | None = None,
        mask: Callable[[str], str] = str,
    ) -> None:
        self._clock = clock
        self._record = record
        self._mask = mask
        self._trial: int | None = None
        self._due_at_s = math.inf
        self._console = console(cast("TextIO", TolerantStream(sys.stderr)))
        self._study: _Study | None = None
        self._running: _Running | None = None
        self._stopping = ""
        self._shown = ExitStack()
        self._live = Live(
            console=self._console,
            get_renderable=self._display,
            transient=True,
            refresh_per_second=4,
        )
        self._pulse = Heartbeat(HEARTBEAT_S, self.beat)

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._live.start()
            self._shown.enter_context(shown_by(self._stop_soon))
        else:
            self._pulse.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shown.close()
        self._live.stop()
        self._pulse.stop()

    def say(self, text: str) -> None:
        self._tell(text)

    def _tell(self, text: str, *, level: Level = "info", event: LogEvent = "line") -> None:
        self._pulse.postpone()
        self._console.print(self._mask(text), soft_wrap=True)
        self._keep(text, level=level, event=event)

    def _keep(self, text: str, *, level: Level = "info", event: LogEvent = "line") -> None:
        if self._record is not None:
            self._record(self._mask(text), level=level, event=event, trial=self._trial)

    def due(self, left_s: float) -> None:
        self._due_at_s = self._clock() + left_s

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
        """Take note of the study whose trials will follow, and of those that it has already."""
        table = TrialTable(study, width=self._console.width)
        # Nothing runs yet: what still says so was cut short by a kill.
        ended = [
            replace(row, state="interrupted") if row.state == "running" else row for row in trials
        ]
        self._study = _Study(study, ended, table)
        for line in few_requests_lines(int(study.spec["requests"])):
            self.say(line)
        for line in () if trials else calibration_lines(study):
            self.say(f"{line} autotune show says it again.")

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        study = self._opened()
        if not study.begun:
            study.begun = True
            if study.trials:
                self.say(f"goes on: {finished_trials(study.trials)} of {total} trials done")
            self._print(study.table.heading())
            for earlier in study.trials:
                self._print(study.row(earlier))
        repeated = row.replicate_of is not None and row.phase not in _REPEATS
        again = ", again" if repeated else ""
        label = (
            f"trial {row.number} ({position} of {total}{again}) {row.phase} "
            f"{limits(row.candidate)}"
        )
        to_come = total - position + 1

        def left(part: str, elapsed_s: float) -> str:
            return study.left(to_come, row, part, elapsed_s, self._due_at_s - self._clock())

        self._running = _Running(label, self._clock(), left=left)
        self._trial = row.number
        begins = "begins" if row.fidelity == "live" else "starting an engine"
        line = f"{label}: {begins}; {left('start', 0.0)}"
        (self._keep if self._live.is_started else self._tell)(line, event="begun")

    def progress(self, body: Mapping[str, Any]) -> None:
        running, label = self._running, body.get("label", "")
        if running is None or (label and label != running.label):
            # A replay that is no trial, which nobody announced.
            running = self._running = _Running(label, self._clock())
        running.take(body["stage"], body["done"], body["total"], self._clock())

    def finished(self, row: TrialRecord) -> None:
        self._running = None
        study = self._opened()
        study.trials.append(row)
        level: Level = "info" if row.state == "complete" else "warning"
        for line in study.row(row):
            self._tell(line, level=level, event="finished")
        self._trial = None

    def beat(self) -> None:
        """Say in a line what runs, or that nothing does just now: forecasts take their time."""
        running = self._running
        if running is None:
            self.say("still at work, between measurements")
        else:
            self.say(": ".join(filter(None, [running.label, self._now(running)])))

    def _stop_soon(self, line: str) -> None:
        self._stopping = line

    def _opened(self) -> _Study:
        if self._study is None:
            raise RuntimeError("a study is opened before its trials")
        return self._study

    def _print(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.say(line)

    def _now(self, running: _Running) -> str:
        elapsed_s = self._clock() - running.since_s
        part = _PARTS[running.part]
        if elapsed_s >= 1.0:
            part += f" for {duration(elapsed_s)}"
        part += _UNTIL.get(running.part, "")
        return "; ".join(
            filter(None, [part, running.count, running.left(running.part, elapsed_s)])
        )

    def _display(self) -> Group:
        """Return what a terminal shows below the table while something runs."""
        if self._stopping:
            return Group(Text(self._stopping))
        running = self._running
        if running is None:
            return Group()
        elapsed_s = self._clock() - running.since_s
        whole = " · ".join(filter(None, [running.label, running.left(running.part, elapsed_s)]))
        bar = Table.grid(padding=(0, 1))
        cells: list[Text | ProgressBar] = [
            Text(f"· {_PARTS[running.part]}{_UNTIL.get(running.part, '')}")
        ]
        if self._console.width >= _ROOM_FOR_A_BAR:
            total = running.total
            cells.append(ProgressBar(total, running.done, width=_BAR_WIDTH, pulse=not total))
        cells += [Text(running.count), Text(duration(elapsed_s))]
        bar.add_row(*cells)
        return Group(*([Text(whole)] if whole else []), bar)


class Heartbeat:
    """Calls ``beat`` after ``interval_s`` seconds of silence, on a thread of its own.

    Args:
        interval_s: between two beats, and between any other sign of life and the next beat.
        beat: what to do.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        interval_s: float,
        beat: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._beat = beat
        self._clock = clock
        self._due_s = clock() + interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def postpone(self) -> None:
        """Take note of another sign of life."""
        self._due_s = self._clock() + self._interval_s

    def stop(self) -> None:
        """Stop it; safe where it was never started."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def tick(self) -> float:
        """Beat if it is time to; return the seconds until it may be."""
        if self._clock() >= self._due_s:
            self.postpone()
            self._beat()
        return max(0.0, self._due_s - self._clock())

    def _run(self) -> None:
        while not self._ended.wait(self.tick()):
            pass
