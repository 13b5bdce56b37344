"""What the time of a study goes to, for ``--dry-run``: known before any engine starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from autotune.engine.supervisor import SWEEP_S
from autotune.study.deadline import Due
from autotune.study.eta import Allowance, allowance
from autotune.study.held import STARTS
from autotune.study.job import Job
from autotune.study.plan import (
    CONFIRM_FROM,
    CONFIRM_TRIALS,
    confirm_trials,
    finished_trials,
    measured,
)
from autotune.study.timekeeper import BETWEEN_S, SEARCH_SHARE, warmup_s
from storage.records import TrialRecord


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a study would spend its time, if every trial took as long as a slow one.

    Attributes:
        allowed: seconds of a trial by its parts.
        due: the deadline, None without one.
        calibrate_s: for measuring step times, 0 where that is not to be done.
        baseline: trials of it that are still to come, 0 or 1.
        search: trials of the search.
        confirm: restarts that confirm.
        held_s: for what is held out, in all.
        live: whether the search is.
        cut: whether the deadline leaves fewer trials than were asked for.
    """

    allowed: Allowance
    due: Due | None
    calibrate_s: float
    baseline: int
    search: int
    confirm: int
    held_s: float
    live: bool
    cut: bool

    @property
    def restart_s(self) -> float:
        return self.allowed.restart_s + BETWEEN_S

    @property
    def trial_s(self) -> float:
        """A trial of the search."""
        return self.allowed.live_s(starts=False) + BETWEEN_S if self.live else self.restart_s

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase."""
        first_s = self.allowed.live_s(starts=True) + BETWEEN_S - self.trial_s if self.live else 0.0
        return {
            "calibrate": self.calibrate_s,
            "baseline": self.baseline * self.restart_s,
            "search": self.search * self.trial_s + (first_s if self.search else 0.0),
            "confirm": self.confirm * self.restart_s,
            "holdout": self.held_s,
        }

    @property
    def total_s(self) -> float:
        return sum(self.phases.values())

    def to_json(self, now_s: float) -> dict[str, Any]:
        """Return the schedule of a study that begins now (seconds since 1970)."""
        due = self.due
        until = None if due is None else datetime.fromtimestamp(now_s + due.seconds).astimezone()
        end = datetime.fromtimestamp(now_s + self.total_s).astimezone()
        return {
            "seconds": {name: round(s, 1) for name, s in self.allowed.seconds.items()},
            "start_known": self.allowed.start_known,
            "trial_s": round(self.trial_s, 1),
            "restart_s": round(self.restart_s, 1),
            "phases": {name: round(s, 1) for name, s in self.phases.items()},
            "trials": self.baseline + self.search + self.confirm,
            "total_s": round(self.total_s, 1),
            "ends_at": end.isoformat(timespec="seconds"),
            "deadline_s": None if due is None else round(due.seconds, 1),
            "deadline_at": None if until is None else until.isoformat(timespec="seconds"),
            "deadline": None if due is None else due.why,
            "cut": self.cut,
        }


def schedule(
    job: Job, due: Due | None, rows: Sequence[TrialRecord] = (), *, start_s: float | None
) -> Schedule:
    """Return how a study would spend its time.

    Args:
        job: of the study.
        due: its deadline, None without one.
        rows: trials that it has already.
        start_s: of an engine, as far as is known before a trial shows it.
    """
    settings, window_s = job.settings, job.trace.duration_s
    allowed = allowance(rows, window_s=window_s, warmup_s=warmup_s(job), start_s=start_s)
    live = job.live and settings.trials >= CONFIRM_FROM
    held_s = 0.0
    if job.held is not None:
        held = allowed.on(job.held.duration_s, instead_of_s=window_s)
        held_s = STARTS * (held.restart_s + BETWEEN_S)
    left = max(0, settings.trials - finished_trials(rows))
    baseline = min(left, int(not measured(rows, job.baseline)))
    confirm = min(left - baseline, confirm_trials(settings.trials, live=live))
    whole = Schedule(
        allowed=allowed,
        due=due,
        calibrate_s=_calibrate_s(job, allowed, rows),
        baseline=baseline,
        search=left - baseline - confirm,
        confirm=confirm,
        held_s=held_s,
        live=live,
        cut=False,
    )
    return whole if due is None or whole.total_s <= due.seconds else _cut(whole, due.seconds)


def _calibrate_s(job: Job, allowed: Allowance, rows: Sequence[TrialRecord]) -> float:
    settings = job.settings
    wanted = settings.calibrate and settings.trials >= CONFIRM_FROM and not rows
    if not wanted or job.calibrated is not None or job.info.live_obstacle is not None:
        return 0.0
    return allowed.seconds["start"] + SWEEP_S


def _cut(whole: Schedule, seconds: float) -> Schedule:
    """Return what of a schedule there is time for: the search gives way, and then the rest."""
    confirm = whole.confirm
    if confirm * whole.restart_s + whole.held_s > (1 - SEARCH_SHARE) * seconds:
        confirm = min(confirm, CONFIRM_TRIALS)
    least = replace(whole, search=min(1, whole.search), confirm=confirm, cut=True)
    further = math.floor((seconds - least.total_s) / whole.trial_s)
    return replace(least, search=max(0, min(whole.search, least.search + further)))
