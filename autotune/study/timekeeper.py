"""Whether there is time for a trial, and for what has to follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from autotune.candidates.live import LIVE_LIMITS
from autotune.engine.supervisor import SWEEP_S
from autotune.simulated.engines import SimulatedEngines
from autotune.study.confirm import searches
from autotune.study.deadline import Deadline, too_short
from autotune.study.eta import Allowance, allowance, slow
from autotune.study.held import STARTS
from autotune.study.plan import CONFIRM_TRIALS, confirm_trials
from autotune.study.runner import SPELL_S
from storage.records import TrialRecord

if TYPE_CHECKING:
    from autotune.study.engines import AnyEngines
    from autotune.study.job import Job
    from autotune.study.plan import Step
    from autotune.study.stage import Stage

BETWEEN_S = 5.0
"""For judging, forecasts and storing around a trial, before any has shown what they take."""

SEARCH_SHARE = 0.5
"""Of the time, what confirming may leave the search at least: else the least is confirmed."""


class Timekeeper:
    """Learns what trials take, and says what still ends by the deadline.

    Args:
        deadline: of this run.
        job: whose window is replayed.
        stage: which engine runs, so that the next trial need not start one.
        start_s: what an engine start takes as far as is known before a trial shows it.
    """

    def __init__(
        self, deadline: Deadline, job: Job, stage: Stage, *, start_s: float | None = None
    ) -> None:
        self.deadline = deadline
        self._job = job
        self._stage = stage
        self._start_s = start_s
        self._between_s: dict[bool, list[float]] = {True: [], False: []}
        self._since_s = deadline.clock()

    @classmethod
    def of(
        cls, deadline: Deadline | None, job: Job, stage: Stage, *, start_s: float | None
    ) -> Self | None:
        """Return a timekeeper of a deadline, None without one."""
        return None if deadline is None else cls(deadline, job, stage, start_s=start_s)

    def ended(self, row: TrialRecord) -> None:
        """Learn from a trial that has ended what is in none of its own times."""
        now_s = self.deadline.clock()
        if row.timings is not None:
            own = [value for name, value in row.timings.items() if name != "turnaround_s"]
            rest_s = now_s - self._since_s - sum(value or 0.0 for value in own)
            self._between_s[searches(row.phase)].append(max(0.0, rest_s))
        self._since_s = now_s

    def left_s(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline.left_s()

    def needed_s(
        self, step: Step, rows: Sequence[TrialRecord], *, confirmations: int | None
    ) -> float:
        """Return how long a trial may take, and what has to follow it.

        Args:
            step: the trial.
            rows: all trials so far.
            confirmations: restarts that follow it, and after them what is held out; None if
                nothing has to.
        """
        needed_s = self.trial_s(step, rows) + self.between_s(step.phase)
        if confirmations is not None:
            needed_s += self.reserve_s(rows, confirmations)
        return needed_s

    def trial_s(self, step: Step, rows: Sequence[TrialRecord]) -> float:
        """Return how long a trial may take, the wait for a slow spell to end included."""
        allowed = self.allowance(rows)
        hit = step.replicate_of is not None and any(
            row.failure_class == "slow_spell" and row.candidate == step.candidate
            for row in rows[-1:]
        )
        wait_s = SPELL_S if hit else 0.0
        if step.fidelity == "live":
            return wait_s + allowed.live_s(starts=self._starts(step))
        # Of the first engine nobody knows how long it takes, and somebody has to try.
        unknown = not allowed.start_known and not any(row.timings for row in rows)
        return wait_s + allowed.restart_s - (allowed.seconds["start"] if unknown else 0.0)

    def reserve_s(self, rows: Sequence[TrialRecord], confirmations: int) -> float:
        """Return what so many restarts and the replays of what is held out may take."""
        allowed = self.allowance(rows)
        reserve_s = confirmations * (allowed.restart_s + self.between_s("confirm"))
        return reserve_s + (STARTS * self.held_s(rows) if self._job.held is not None else 0.0)

    def held_s(self, rows: Sequence[TrialRecord]) -> float:
        """Return how long one replay of what is held out may take, with its engine's start."""
        held, window_s = self._job.held, self._job.trace.duration_s
        allowed = self.allowance(rows)
        if held is not None:
            allowed = allowed.on(held.duration_s, instead_of_s=window_s)
        return allowed.restart_s + self.between_s("confirm")

    def has_time_for_held(self, rows: Sequence[TrialRecord]) -> bool:
        """Whether a replay of what is held out ends by the deadline."""
        return self.held_s(rows) <= self.left_s()

    def confirmations(self, wanted: int, least: int, rows: Sequence[TrialRecord]) -> int:
        """Return for how many restarts of those wanted the search leaves time."""
        most_s = (1 - SEARCH_SHARE) * self.deadline.total_s
        return wanted if self.reserve_s(rows, wanted) <= most_s else min(wanted, least)

    def allowance(self, rows: Sequence[TrialRecord]) -> Allowance:
        """Return how long the parts of the next trial may take."""
        return allowance(
            rows,
            window_s=self._job.trace.duration_s,
            warmup_s=warmup_s(self._job),
            # The first trials may share an engine that a calibration has started.
            start_s=self._start_s if self._stage.start_s is None else self._stage.start_s,
        )

    def between_s(self, phase: str) -> float:
        """Return the seconds that a trial takes beside its own times; a search needs forecasts."""
        search = searches(phase)
        known = slow(self._between_s[search] or self._between_s[not search])
        return BETWEEN_S if known is None else known

    def _starts(self, step: Step) -> bool:
        """Whether a live trial has to start its engine, or may have to."""
        job = self._job
        if set(job.lattice.ladders) - set(LIVE_LIMITS):
            return True
        candidate = step.candidate or job.baseline
        return self._stage.log_path(job, candidate, "live") is None


def least_s(job: Job, *, start_s: float | None) -> float:
    """Return what a new study takes at least: a baseline, one more candidate, their restarts.

    A start of which nothing is known counts as nothing. What measures step times before them
    counts as long as it may take.
    """
    settings = job.settings
    known = allowance(
        [], window_s=job.trace.duration_s, warmup_s=warmup_s(job), start_s=start_s or 0.0
    )
    restart_s = known.restart_s - known.seconds["stop"]
    confirmed = min(CONFIRM_TRIALS, confirm_trials(settings.trials, live=job.live))
    restarts = min(2, settings.trials) + confirmed
    if not confirmed or job.info.live_obstacle is not None:
        return restarts * restart_s
    sweep_s = known.seconds["start"] + SWEEP_S if settings.calibrate else 0.0
    if not job.live:
        return sweep_s + restarts * restart_s
    return sweep_s + (restarts - 1) * restart_s + known.live_s(starts=not sweep_s)


def warmup_s(job: Job) -> float:
    """Return what of the window warms an engine up; a simulated one needs nothing."""
    return 0.0 if job.settings.simulated else job.settings.warmup_s


def check_enough(deadline: Deadline | None, job: Job, *, start_s: float | None) -> None:
    """Return if a new study can measure anything by a deadline, or there is none.

    Raises:
        UsageError: it cannot; the message says how long it takes at least.
    """
    needed_s = least_s(job, start_s=start_s)
    if deadline is not None and needed_s > deadline.left_s():
        raise too_short(deadline, needed_s)


def known_start_s(engines: AnyEngines, job: Job) -> float | None:
    """Return what an engine start takes where a profile says so, or a calibration at most."""
    if isinstance(engines, SimulatedEngines):
        return engines.profile.start_s
    return None if job.calibrated is None else job.calibrated.seconds
