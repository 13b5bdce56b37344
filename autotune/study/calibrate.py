"""The first phase of a study, and the whole of ``autotune calibrate``: step times of an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Protocol

from autotune.candidates.lattice import SEQS, TOKENS, Tiles
from autotune.candidates.live import LIVE_LIMITS
from autotune.engine.protocol import EngineInfo, Failure, TrialFailed
from autotune.engine.supervisor import Started
from autotune.errors import EnvironmentFault, UsageError
from autotune.forecast.grid import SweepPlan, sweep_plan
from autotune.forecast.sweep import Calibrated, MeasuredRungs
from autotune.settings import TuneSettings
from autotune.simulated.profile import Profile, profile_of
from autotune.study.job import Job
from autotune.study.session import (
    Follower,
    describe_engine,
    end_earlier_runs,
    engine_lease,
    log_of_one_engine,
    open_supervisor,
)
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


class FixedLimits(TrialFailed):
    """An engine runs, but says that its limits cannot be changed: so would another one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What ``autotune calibrate`` found: of which engine, and the ladders up to its limits."""

    info: EngineInfo
    calibrated: Calibrated
    ladders: Mapping[str, Sequence[int]]
    start_s: float

    def profile(self, name: str) -> Profile:
        """Return the engine as it can be simulated.

        Raises:
            EnvironmentFault: no step was measured.
        """
        try:
            return profile_of(
                self.calibrated,
                self.info,
                name=name,
                model=PurePath(self.info.model).name,
                start_s=self.start_s,
                date=datetime.now(UTC).date().isoformat(),
            )
        except ValueError as error:
            raise EnvironmentFault(
                f"no profile can be made: {error}", hint="calibrate again, without other load"
            ) from error

    def to_json(self) -> dict[str, Any]:
        return {
            "vllm_version": self.info.vllm_version,
            "device": self.info.device,
            "model": self.info.model,
            **{name: self.info.resolved[name] for name in (TOKENS, SEQS)},
            "max_model_len": self.info.max_model_len,
            "kv_cache_tokens": self.info.kv_cache_tokens,
            "work": None if self.info.work is None else self.info.work.to_json(),
            "start_s": self.start_s,
            "ladders": {name: list(rungs) for name, rungs in self.ladders.items()},
            **self.calibrated.to_json(),
        }


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
    started = stage.start(job.envelope(job.baseline), log_path).started
    return sweep(started, sweeper, tile=tile, on_progress=on_progress)


def sweep(
    started: Started,
    sweeper: Sweeper,
    *,
    tile: int,
    on_progress: Callable[[Mapping[str, Any]], None],
) -> Calibrated:
    """Measure the steps of the engine that runs, up to its own limits.

    Raises:
        FixedLimits: its limits cannot be changed.
        TrialFailed: it died.
    """
    info, begun = started.info, time.perf_counter()
    if info.live_obstacle is not None:
        raise FixedLimits(Failure("unknown", f"no step times: {info.live_obstacle}"))
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
    return Calibrated.of(
        steps,
        plan=plan,
        whole=whole,
        capture_sizes=info.capture_sizes,
        work=info.work,
        seconds=started.start_s + time.perf_counter() - begun,
    )


def calibrate_once(
    settings: TuneSettings, follower: Follower, *, for_profile: bool = False
) -> Measured:
    """Start an engine with the user's arguments, measure its steps, and stop it.

    Args:
        settings: of the engine.
        follower: told what happens.
        for_profile: whether the engine is to be simulated later on.

    Raises:
        UsageError: vLLM refuses the arguments, limits cannot be changed with them, the tile is
            none, or no simulation knows such an engine and a profile is wanted.
        EnvironmentFault: the engine did not start, died, or cannot be measured.
    """
    tiles, name = Tiles.parse(settings.tile), "calibrate"
    log = log_of_one_engine(settings, name)
    with ExitStack() as stack:
        end_earlier_runs(follower.say)
        supervisor = stack.enter_context(open_supervisor(settings, name))
        follower.say("asking vLLM for its defaults")
        described = describe_engine(settings, supervisor).info
        if described.live_obstacle is not None:
            raise UsageError(
                f"step times cannot be measured: {described.live_obstacle}",
                hint="a sweep changes limits on a running engine; give it other arguments",
            )
        if for_profile and described.forecast_obstacle is not None:
            raise UsageError(
                f"an engine like this cannot be simulated: {described.forecast_obstacle}",
                hint="without --save its step times are measured all the same",
            )
        stack.enter_context(engine_lease(supervisor, described))
        follower.say("starting an engine")
        try:
            started = supervisor.start({**settings.engine_args, "model": described.model}, log)
            calibrated = sweep(
                started, supervisor, tile=tiles.tokens, on_progress=follower.progress
            )
        except TrialFailed as outcome:
            raise EnvironmentFault(str(outcome), hint=f"the engine's log is {log}") from outcome
        # What was measured counts even if the engine will not go quietly.
        with suppress(TrialFailed):
            supervisor.stop()
    rungs, resolved = MeasuredRungs(calibrated.calibration), started.info.resolved
    low, top = max(tiles.tokens, 2 * tiles.seqs), int(resolved[TOKENS])
    ladders = {
        TOKENS: rungs.budgets(tiles.tokens, low, top),
        SEQS: rungs.caps(tiles.seqs, int(resolved[SEQS])) or (int(resolved[SEQS]),),
    }
    return Measured(started.info, calibrated, ladders, started.start_s)
