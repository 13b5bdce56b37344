"""What a study would do, for ``--dry-run``: known before any engine starts."""

from __future__ import annotations

import math
from typing import Any

from autotune.candidates.lattice import plain_values
from autotune.candidates.live import LIVE_LIMITS
from autotune.candidates.starts import starting_points
from autotune.study.eta import pace
from autotune.study.held import STARTS
from autotune.study.job import Job
from autotune.study.measurable import requests_with
from autotune.study.plan import CONFIRM_FROM, engine_starts, live_to_come
from autotune.traffic.model import Trace
from objectives.classes import classes_text
from objectives.statistics import requests_needed


def outlook(job: Job) -> dict[str, Any]:
    """Return the plan of a job in names and plain values."""
    starts = starting_points(
        job.lattice, job.trace.input_lengths, job.baseline, lambda c: c != job.baseline
    )
    return {
        "requests": len(job.trace.requests),
        "duration_s": round(job.trace.duration_s, 1),
        "load": job.settings.load or 1.0,
        "longest_request": job.trace.longest_request,
        "max_model_len": job.info.max_model_len,
        "classes": classes_text(job.classes) or "one",
        "budget": job.budget.text or "none",
        "too_few_requests_for": too_few_requests_for(job, job.trace),
        "holdout": _held(job),
        "baseline": plain_values(job.baseline),
        "starts": [plain_values(start.candidate) for start in starts],
        **job.lattice.to_json(),
        "too_long": job.settings.too_long,
        "too_long_requests": job.trace.notes.skipped + job.trace.notes.truncated,
        "notes": job.trace.notes.sentences(),
        "cells": len(job.lattice.cells()),
        "trials": job.settings.trials,
        "live": job.live,
        "live_trials": _live_trials(job),
        "engine_starts": _engine_starts(job) + (0 if job.held is None else STARTS),
        "restarted_knobs": sorted(set(job.lattice.ladders) - set(LIVE_LIMITS)),
        "replay_hours_at_least": _replay_hours(job),
        "vllm_version": job.info.vllm_version,
        "device": job.info.device,
    }


def _replay_hours(job: Job) -> float:
    """Return what whole windows and warm-ups take by themselves, rounded down."""
    settings = job.settings
    expected = pace([], window_s=job.trace.duration_s, warmup_s=settings.warmup_s)
    later = live_to_come([], settings.trials, live=job.live)
    seconds = expected.left_s(settings.trials, live_later=later)
    if job.held is not None:
        held = pace([], window_s=job.held.duration_s, warmup_s=settings.warmup_s)
        seconds += held.left_s(STARTS)
    return math.floor(seconds / 3600 * 1e4) / 1e4


def _held(job: Job) -> dict[str, Any] | None:
    """Return what is held out, None if nothing; half the starts if the baseline wins."""
    if job.held is None:
        return None
    return {
        "share": job.settings.holdout,
        "requests": len(job.held.requests),
        "duration_s": round(job.held.duration_s, 1),
        "too_few_requests_for": too_few_requests_for(job, job.held),
        "engine_starts": STARTS,
    }


def _live_trials(job: Job) -> int:
    """Return how many trials change the limits of an engine that runs, if none is repeated."""
    return job.settings.trials - engine_starts(job.settings.trials, live=job.live)


def _engine_starts(job: Job) -> int:
    """Return how many engines start in all, if nothing has to be repeated.

    Calibration, baseline and live trials share one where the baseline has the largest limits;
    else each of them, as far as there are any, starts its own. Without those for what is held
    out.
    """
    settings = job.settings
    restarts = settings.trials - _live_trials(job)
    if job.envelope(job.baseline) == job.engine_args(job.baseline):
        return restarts
    may_measure = settings.trials >= CONFIRM_FROM and job.info.live_obstacle is None
    calibrated = job.calibrated is not None or (may_measure and settings.calibrate)
    return restarts + calibrated + (_live_trials(job) > 0)


def too_few_requests_for(job: Job, trace: Trace) -> list[dict[str, Any]]:
    """Return the limits that a part of the window is too short to bound from above, each once.

    With its ``limit``, the ``requests`` of the part that have such a value, and how many are
    ``needed``: None for a maximum, which no window bounds.
    """
    found = {}
    for limit in job.budget.limits:
        counted = requests_with(trace, limit, job.classes)
        needed = requests_needed(limit.aggregate)
        if needed is None or counted < needed:
            found[limit.key] = {"limit": limit.key, "requests": counted, "needed": needed}
    return list(found.values())
