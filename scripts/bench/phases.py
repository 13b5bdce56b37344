"""The real command line in a child that says when a phase of a study begins, and may wait there.

    phases.py OPTIONS... -- tune --config autotune.yaml

A phase is written to the pipe ``--says`` as it begins, a line each. At the ``--hold`` of a phase,
``store:2`` for its second time, the child then waits until its parent writes to the pipe
``--hears``. What faults cannot do from outside is done here: an engine that gives NaN, fails or
floods its log, a time of day that jumps.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

PHASES = ("describe", "begin", "start", "warmup", "replay", "stop", "store", "tell", "report")


class Channel:
    """What the parent is told, and waited for."""

    def __init__(self, says: int, hears: int | None, hold: str, pace_s: float) -> None:
        self._says = says
        self._hears = hears
        phase, _, time_of = hold.partition(":")
        self._hold = phase, int(time_of or 1)
        self._pace_s = pace_s
        self._seen: Counter[str] = Counter()

    def begun(self, phase: str) -> None:
        """Say that a phase begins, and wait if this is where."""
        self._seen[phase] += 1
        os.write(self._says, f"{phase}\n".encode())
        if self._hears is not None and (phase, self._seen[phase]) == self._hold:
            os.write(self._says, b"held\n")
            os.read(self._hears, 1)

    def lasting(self, phase: str) -> None:
        """The same of a phase that takes some time even where an engine is simulated."""
        self.begun(phase)
        time.sleep(self._pace_s)


def before(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Have something done each time before a function is called."""
    original: Callable[..., Any] = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        act()
        return original(*arguments, **named)

    setattr(owner, name, called)


def announce(channel: Channel) -> None:
    """Have all phases announced, of real engines and of simulated ones."""
    from autotune import controller, tuning
    from autotune.cli import tune
    from autotune.cli.watch import ScreenWatcher
    from autotune.engine.supervisor import Supervisor
    from autotune.simulated.engines import SimulatedEngines
    from storage.repository import Repository

    before(tuning, "describe_engine", lambda: channel.begun("describe"))
    before(controller.Controller, "_begin", lambda: channel.begun("begin"))
    before(Supervisor, "start", lambda: channel.begun("start"))
    before(Supervisor, "replay", lambda: channel.begun("warmup"))
    before(Supervisor, "stop", lambda: channel.begun("stop"))
    before(SimulatedEngines, "start", lambda: channel.lasting("start"))
    before(SimulatedEngines, "replay", lambda: channel.lasting("replay"))
    before(SimulatedEngines, "close", lambda: channel.begun("stop"))
    before(Repository, "store_ending", lambda: channel.begun("store"))
    before(controller, "tell_stored", lambda: channel.begun("tell"))
    before(tune, "_print", lambda: channel.begun("report"))
    progress = ScreenWatcher.progress

    def noted(watcher: ScreenWatcher, body: Any) -> None:
        if body["stage"] == "replay" and body["done"] < body["total"]:
            channel.begun("replay")
        progress(watcher, body)

    setattr(ScreenWatcher, "progress", noted)  # noqa: B010 - as in before.


def keep_journal(path: Path) -> None:
    """Write down what was measured, with its time, once its file or its row is on the disk."""
    from storage.repository import Repository
    from storage.spool import Spool, Spooled

    def noted(what: str, number: int, finished_at: str) -> None:
        with path.open("a", encoding="ascii") as file:
            file.write(f"{what} {number} {finished_at}\n")

    keep, store = Spool.keep, Repository.store_ending

    def kept(spool: Spool, spooled: Spooled) -> Path:
        found = keep(spool, spooled)
        noted("kept", spooled.number, spooled.finished_at)
        return found

    def stored(repository: Repository, study: int, number: int, *rest: Any, **named: Any) -> None:
        store(repository, study, number, *rest, **named)
        noted("stored", number, named["finished_at"])

    setattr(Spool, "keep", kept)  # noqa: B010 - as in before.
    setattr(Repository, "store_ending", stored)  # noqa: B010 - as in before.


def spoil(*, nan_at: int, fails_from: int) -> None:
    """Have simulated replays give NaN at one time, or fail from one time on; 0 for never."""
    from autotune.engine.protocol import Failure, TrialFailed
    from autotune.simulated.engines import SimulatedEngines

    original, seen = SimulatedEngines.replay, Counter[str]()

    def replay(*arguments: Any) -> Any:
        seen["replay"] += 1
        if fails_from and seen["replay"] >= fails_from:
            raise TrialFailed(Failure("engine_dead", "EngineCore ended by SIGKILL"))
        result = original(*arguments)
        if seen["replay"] == nan_at:
            steps, nan = result.steps, float("nan")
            return replace(result, steps=replace(steps, done_s=steps.done_s * nan))
        return result

    setattr(SimulatedEngines, "replay", replay)  # noqa: B010 - as in before.


def jump_the_clock(seconds: float) -> None:
    """Have the time of day jump at the third look; the machine's own cannot be set by tests."""
    from autotune import controller
    from autotune.study.deadline import ClockWatch

    looks: Counter[str] = Counter()

    def wall() -> float:
        looks["wall"] += 1
        return time.time() + seconds * (looks["wall"] >= 3)

    setattr(controller, "ClockWatch", lambda: ClockWatch(wall=wall))  # noqa: B010 - as in before.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--says", type=int, required=True)
    parser.add_argument("--hears", type=int)
    parser.add_argument("--hold", default="")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--nan-at", type=int, default=0)
    parser.add_argument("--fails-from", type=int, default=0)
    parser.add_argument("--jump", type=float, default=0.0)
    parser.add_argument("arguments", nargs="+")
    given = parser.parse_args()
    # First, so that announcing comes before what is announced.
    if given.journal is not None:
        keep_journal(given.journal)
    if given.nan_at or given.fails_from:
        spoil(nan_at=given.nan_at, fails_from=given.fails_from)
    if given.jump:
        jump_the_clock(given.jump)
    announce(Channel(given.says, given.hears, given.hold, given.pace))
    sys.argv = ["autotune", *given.arguments]
    from autotune.__main__ import main as autotune

    autotune()


if __name__ == "__main__":
    main()
