"""When a run of a study has to be over, and by which clock that is counted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from autotune.errors import EnvironmentFault, UsageError
from autotune.moments import next_moment, parse_moment
from autotune.settings import TuneSettings
from autotune.traffic.window import parse_duration

GRACE_S = 60.0
"""What begins in time and takes longer than any before it may take, beyond the deadline."""

JUMP_S = 5.0
"""By which the time of day has to move against seconds that only grow, to be worth a line."""

SLURM_END = "SLURM_JOB_END_TIME"
SLURM_MARGIN_S = 60.0
"""Before Slurm ends a job, so that the verdict is printed by then."""

Clock = Callable[[], float]

try:
    _CLOCK = time.CLOCK_BOOTTIME
except AttributeError:  # Linux alone has it.
    _CLOCK = time.CLOCK_MONOTONIC


class DeadlinePassed(EnvironmentFault):
    """The deadline and its grace are over, and something still runs."""


def boot_time() -> float:
    """Return seconds that only grow, those of a suspended machine among them."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Due:
    """How long a run may take from its start, and why."""

    seconds: float
    why: str

    def by(self, clock: Clock, begun_s: float) -> Deadline:
        """Return the deadline of a run that began at a moment of a clock."""
        return Deadline(begun_s + self.seconds, self.seconds, self.why, clock)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of a clock.

    Attributes:
        at_s: the moment.
        total_s: from the start of the run until then.
        why: the option that it comes from.
        clock: seconds that only grow.
    """

    at_s: float
    total_s: float
    why: str
    clock: Clock

    def left_s(self) -> float:
        """Return the seconds that are left, below 0 once it is over."""
        return self.at_s - self.clock()

    def check(self) -> None:
        """Return unless it is over for longer than the grace.

        Raises:
            DeadlinePassed: it is.
        """
        if self.left_s() < -GRACE_S:
            raise DeadlinePassed(
                f"cut short {GRACE_S:.0f} s after the deadline, {self.why}",
                hint="the same command with more time goes on from here",
            )


def due(settings: TuneSettings, environ: Mapping[str, str], now_s: float) -> Due | None:
    """Return the earliest deadline that is given, None if there is none.

    Args:
        settings: ``timeout`` and ``until``.
        environ: Slurm tells its jobs when it ends them; that counts for engines that run, and
            not for simulated ones, whose time passes on paper.
        now_s: seconds since 1970.

    Raises:
        UsageError: it is over already.
    """
    found = []
    if settings.timeout is not None:
        found.append(Due(parse_duration(settings.timeout), f"--timeout {settings.timeout}"))
    if settings.until is not None:
        moment = next_moment(parse_moment(settings.until), now_s)
        if moment is None:
            raise UsageError(
                f"--until {settings.until} is over", hint="give a time of day, or a later date"
            )
        found.append(Due(moment - now_s, f"--until {settings.until}"))
    end = environ.get(SLURM_END, "")
    if end.isdecimal() and not settings.simulated:
        left_s = int(end) - SLURM_MARGIN_S - now_s
        found.append(Due(max(0.0, left_s), f"the end of the Slurm job ({SLURM_END})"))
    return min(found, key=lambda each: each.seconds, default=None)


class ClockWatch:
    """Notices when the time of day jumps against a clock that only grows.

    Args:
        wall: seconds since 1970, by the time of day.
        clock: seconds that only grow.
    """

    def __init__(self, *, wall: Clock = time.time, clock: Clock = boot_time) -> None:
        self._wall = wall
        self._clock = clock
        self._offset_s = wall() - clock()

    def jump_s(self) -> float | None:
        """Return by how much the time of day has jumped since it was asked, None if it has not."""
        before_s = self._offset_s
        self._offset_s = self._wall() - self._clock()
        jump_s = self._offset_s - before_s
        return jump_s if abs(jump_s) > JUMP_S else None


def deadline_line(deadline: Deadline, now_s: float, *, simulated: bool) -> str:
    """Return when a run ends, in words; a simulated one ends on paper."""
    left_s = deadline.left_s()
    if simulated:
        return f"ends after {left_s:.0f} s of simulated time ({deadline.why})"
    moment = datetime.fromtimestamp(now_s + left_s).astimezone()
    return f"ends by {moment:%Y-%m-%d %H:%M:%S %Z} ({deadline.why})"


def too_short(deadline: Deadline, needed_s: float) -> UsageError:
    """Return the refusal of a run in whose time nothing can be measured."""
    return UsageError(
        f"{deadline.why} leaves {max(0.0, deadline.left_s()):.0f} s, too short to measure "
        f"anything: it takes {math.ceil(needed_s)} s at least",
        hint="give it more time, or a shorter --window",
    )
