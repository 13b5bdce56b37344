"""The first phase of a study, and the whole of ``autotune calibrate``: step times of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.live import LIVE_LIMITS
from autotune.forecast.grid import SweepPlan, sweep_plan
from autotune.forecast.sweep import Calibrated
from autotune.study.job import Job
from autotune.study.stage import Stage
from objectives.steps import Steps


class Sweeper(Protocol):
    """Who runs a sweep; see ``autotune.engine.supervisor``."""

    def sweep(
        self,
        plan: SweepPlan,
        limits: Mapping[str, int],
        on_progress: Callable[[Mapping[str, Any]], None],
    ) -> tuple[Steps, bool]: ...


def calibrate(
    job: Job,
    stage: Stage,
    sweeper: Sweeper,
    *,
    tile: int,
    log_path: Path,
    on_progress: Callable[[Mapping[str, Any]], None],
) -> Calibrated:
    """Start the engine of the largest limits, and measure its steps; it is left running.

    Args:
        job: whose ladders, made without step times, say what is to be covered.
        stage: gets the engine.
        sweeper: runs the sweep.
        tile: quantum of the step budgets.
        log_path: of the engine.
        on_progress: told how far the sweep is.

    Raises:
        TrialFailed: the engine did not start, or died.
    """
    info = stage.start(job.envelope(job.baseline), log_path).started.info
    limits = {name: int(info.resolved.get(name) or 0) for name in LIVE_LIMITS}
    plan = sweep_plan(
        max_tokens=limits[TOKENS],
        max_seqs=limits[SEQS],
        max_model_len=info.max_model_len,
        capture_sizes=info.capture_sizes,
        kv_cache_tokens=info.kv_cache_tokens or info.max_model_len,
        tile=tile,
    )
    steps, whole = sweeper.sweep(plan, limits, on_progress)
    return Calibrated.of(steps, whole=whole, capture_sizes=info.capture_sizes, work=info.work)
