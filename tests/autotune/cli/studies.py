"""A database with finished studies, made by the real controller on scripted engines."""

from __future__ import annotations

from pathlib import Path

from autotune.engine.protocol import Failure, TrialFailed
from tests.autotune.study.scripted import ScriptedEngines, job_of, opened, too_slow


def make_studies(folder: Path) -> Path:
    """Make ``slow`` without a feasible trial, ``new`` without any, and ``knee``."""
    with opened(folder, job_of(trials=2), ScriptedEngines(too_slow), name="slow") as running:
        running.controller.run()
    with opened(folder, job_of(), ScriptedEngines(), name="new"):
        pass
    failure = Failure("oom_start", "CUDA out of memory")
    engines = ScriptedEngines(faults={("start", 1): TrialFailed(failure)})
    with opened(folder, job_of(trials=6), engines, name="knee") as running:
        running.controller.run()
    return folder / "study.db"
