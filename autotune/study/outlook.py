"""What a study would do, for ``--dry-run``: known before any engine starts."""

from __future__ import annotations

from typing import Any

from autotune.candidates.starts import starting_points
from autotune.study.job import Job
from objectives.statistics import requests_needed


def outlook(job: Job) -> dict[str, Any]:
    """Return the plan of a job in names and plain values."""
    requests = len(job.trace.requests)
    starts = starting_points(
        job.lattice, job.trace.input_lengths, job.baseline, lambda c: c != job.baseline
    )
    needed = {
        limit.aggregate: count
        for limit in job.budget.limits
        if (count := requests_needed(limit.aggregate)) is not None
    }
    return {
        "requests": requests,
        "duration_s": round(job.trace.duration_s, 1),
        "longest_request": job.trace.longest_request,
        "max_model_len": job.info.max_model_len,
        "classes": " ".join(each.text for each in job.classes) or "one",
        "budget": job.budget.text or "none",
        "too_few_requests_for": [name for name, count in needed.items() if requests < count],
        "baseline": dict(job.baseline),
        "starts": [start.candidate for start in starts],
        "ladders": {name: list(values) for name, values in job.lattice.ladders.items()},
        "off_tile": {name: list(values) for name, values in job.lattice.off_tile.items()},
        "too_long": job.settings.too_long,
        "too_long_requests": job.trace.notes.skipped + job.trace.notes.truncated,
        "notes": job.trace.notes.sentences(),
        "cells": len(job.lattice.cells()),
        "trials": job.settings.trials,
        "replay_hours_at_least": round(
            job.settings.trials * (job.trace.duration_s + job.settings.warmup_s) / 3600, 2
        ),
        "vllm_version": job.info.vllm_version,
        "device": job.info.device,
    }
