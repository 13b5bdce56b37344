"""How a new study begins: whether its search can be live, and what its engine's steps take."""

from __future__ import annotations

from dataclasses import replace

from autotune.candidates.lattice import Tiles
from autotune.engine.protocol import EngineInfo, TrialFailed
from autotune.engine.supervisor import Description
from autotune.forecast.sweep import Calibrated
from autotune.settings import TuneSettings
from autotune.study.calibrate import FixedLimits, Sweeper, calibrate
from autotune.study.job import Job, make_job
from autotune.study.plan import CONFIRM_FROM
from autotune.study.session import Follower, log_folder
from autotune.study.stage import Stage

PASSING = frozenset({"hang", "engine_dead", "start_timeout", "unknown"})
"""Failures after which another engine may well run, so one more is tried.

What is unknown may be a process that somebody ended, or memory that somebody else had.
"""


def searches_live(settings: TuneSettings, info: EngineInfo) -> bool:
    """Whether the search may change limits on a running engine, as far as settings say."""
    wanted = settings.fidelity == "auto" and settings.trials >= CONFIRM_FROM
    return wanted and info.live_obstacle is None


def first_job(
    job: Job,
    described: Description,
    stage: Stage,
    sweeper: Sweeper,
    *,
    listener: Follower,
    name: str,
) -> Job:
    """Return the job with step times measured, where that is wanted and possible.

    What stands in the way of live trials is said in one line, and every trial then restarts. A
    failure that may pass stands in nobody's way: the engine is tried once more, and if that
    fails too, only the step times are missing.

    Args:
        job: with ladders made without step times.
        described: what vLLM makes of the user's arguments.
        stage: gets the engine of the largest limits, and keeps it.
        sweeper: measures its steps.
        listener: told in words.
        name: of the study.
    """
    settings = job.settings
    if settings.trials < CONFIRM_FROM:
        return job
    obstacle = described.info.live_obstacle
    if obstacle is None and settings.calibrate:
        listener.say("calibrating: starting the engine of the largest limits")
        try:
            calibrated = _calibrated(job, stage, sweeper, listener=listener, name=name)
        except TrialFailed as outcome:
            obstacle = f"the engine of the largest limits cannot be used ({outcome})"
            if not job.live or _may_pass(outcome):
                listener.say(f"no step times were measured: {obstacle}")
                return job
        else:
            return make_job(
                settings,
                job.trace,
                job.budget,
                job.classes,
                described,
                peak=job.peak_concurrency,
                live=job.live,
                calibrated=calibrated,
                held=job.held,
            )
    if obstacle is not None and settings.fidelity == "auto":
        listener.say(f"every trial restarts an engine: {obstacle}")
        return replace(job, live=False)
    return job


def _calibrated(
    job: Job, stage: Stage, sweeper: Sweeper, *, listener: Follower, name: str
) -> Calibrated:
    """Measure the step times; after a failure that may pass, once more.

    Raises:
        TrialFailed: as ``calibrate``; nothing runs then.
    """
    folder = log_folder(job.settings, name)

    def attempt(log: str) -> Calibrated:
        tile = Tiles.parse(job.settings.tile).tokens
        try:
            return calibrate(
                job,
                stage,
                sweeper,
                tile=tile,
                log_path=folder / log,
                on_progress=listener.progress,
            )
        except TrialFailed:
            stage.kill()
            raise

    try:
        return attempt("calibrate.log")
    except TrialFailed as outcome:
        if not _may_pass(outcome):
            raise
        listener.say(f"calibrating once more: {outcome}")
    return attempt("calibrate-again.log")


def _may_pass(outcome: TrialFailed) -> bool:
    fixed = isinstance(outcome, FixedLimits)
    return outcome.failure.failure_class in PASSING and not fixed
