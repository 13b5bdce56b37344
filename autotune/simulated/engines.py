"""An engine that only exists as a profile, behind the same calls as a real one.

Nothing waits: starts and replays move a clock of their own. The same seed and salt give the same
noise, so that a study repeats exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from autotune.candidates.live import LIVE_LIMITS
from autotune.engine.ground import Ground
from autotune.engine.processes import Process
from autotune.engine.protocol import (
    EngineInfo,
    Failure,
    ReplayPlan,
    ReplayResult,
    TrialFailed,
    Warmup,
)
from autotune.engine.supervisor import (
    SWEEP_S,
    Description,
    ProgressCallback,
    Started,
    open_log,
)
from autotune.forecast.grid import SweepPlan
from autotune.forecast.simulation import EngineShape, Simulated, Traffic, simulate
from autotune.settings import SIMULATED
from autotune.simulated.arguments import (
    HONOURED,
    POLICIES,
    WITHOUT_EFFECT,
    objections,
    unlike,
)
from autotune.simulated.cutting import cut_at_loss
from autotune.simulated.profile import Profile
from autotune.simulated.shape import kv_blocks, kv_tokens, shape_of
from autotune.simulated.sweep import sweep_steps
from autotune.traffic.model import Trace
from objectives.arrays import F8
from objectives.classes import parse_classes
from objectives.limits import parse_budget
from objectives.steps import Steps

_JITTERED_STEPS = 8192
_STRIDE_S = 1.0
_UNSAID: Mapping[str, Any] = {"scheduling_policy": POLICIES[0]}
"""What holds where a profile does not say: engines were not always asked for their policy."""
_NOTHING_HELD = Ground(
    processes=0,
    host_memory_bytes=0,
    host_descriptors=0,
    shared_memory_bytes=0,
    sockets=0,
    gpu_memory_bytes={},
)


class SimulatedEngines:
    """Simulates engines by a profile; see ``autotune.engine.supervisor.Supervisor``.

    Args:
        profile: of the engine.
        seed: of the noise.
        log_folder: where a supervisor would keep its log.

    Attributes:
        pulse: called every so often of the time that passes on paper; what it raises ends that.
    """

    def __init__(self, profile: Profile, *, seed: int, log_folder: Path) -> None:
        self.profile = profile
        self.pulse: Callable[[], None] | None = None
        self._seed = seed
        self._log_folder = log_folder
        self._clock_s = 0.0
        self._info: EngineInfo | None = None
        self._limits: Mapping[str, int] = {}
        self._traffic: tuple[Trace, EngineShape, Traffic] | None = None

    @property
    def device_uuids(self) -> frozenset[str]:
        """None: no GPU is used."""
        return frozenset()

    @property
    def host_log(self) -> Path:
        return self._log_folder / "host.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def describe(self, engine_args: Mapping[str, Any]) -> Description:
        """Return what the profile's engine would be with these arguments."""
        # Also of what may be given and the profile does not name.
        named = {**dict.fromkeys(HONOURED | WITHOUT_EFFECT), **self._given({})}
        flags = {name: _flag(name, value) for name, value in named.items()}
        return Description(self._resolve(engine_args), flags)

    def validate(self, engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
        """Return the objection to the arguments or None, and the arguments that are known."""
        measured = self.profile.info.resolved
        error = next(unlike(self.profile, engine_args), None)
        error = error or next(objections(self._given(engine_args)), None)
        return error, (*measured, *sorted(HONOURED - measured.keys()))

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> Started:
        """Return at once, on a clock that has moved on by what a start took.

        Raises:
            TrialFailed: the arguments are refused, or no request of full length fits the cache.
        """
        error, _ = self.validate(engine_args)
        if error is not None:
            raise TrialFailed(Failure("refused_argument", error))
        info = self._resolve(engine_args)
        # As many blocks as the profile's, whatever the longest request.
        info = replace(info, kv_cache_tokens=kv_tokens(kv_blocks(self.profile.info), info))
        with open_log(log_path) as log:
            log.write(f"{info.device}: no engine was started\n".encode())
        self._info = info
        self._limits = {name: int(info.resolved.get(name) or 0) for name in LIVE_LIMITS}
        self._pass(self.profile.start_s)
        return Started(info, self.profile.start_s, _NOTHING_HELD)

    def limit(self, limits: Mapping[str, int]) -> None:
        """Change ``LIVE_LIMITS``."""
        self._limits = {**self._limits, **limits}

    def sweep(
        self,
        plan: SweepPlan,
        limits: Mapping[str, int],
        on_progress: ProgressCallback,
        *,
        seconds: float = SWEEP_S,
    ) -> tuple[Steps, bool]:
        """Return the steps of a sweep, and whether there was time for all of it."""
        steps = sweep_steps(plan, self.profile.step_times, self._shape(), limits)
        takes_s = (steps.done_s - steps.begun_s) * self._jitter("sweep", len(steps))
        done_s = np.cumsum(takes_s)
        steps = replace(steps, begun_s=done_s - takes_s, planned_s=done_s - takes_s, done_s=done_s)
        kept = steps.select(steps.begun_s <= seconds)
        self._pass(float(kept.done_s[-1]))
        on_progress(_progress("calibrate", len(kept), int(kept.tokens.sum())))
        return kept, len(kept) == len(steps)

    def replay(
        self, trace: Trace, plan: ReplayPlan, on_progress: ProgressCallback
    ) -> ReplayResult:
        """Return what a replay would have been, cut short where a real one would have been."""
        shape = self._shape()
        whole = simulate(
            self._of(trace, shape),
            self.profile.step_times,
            shape,
            self._limits,
            jitter=self._jitter(plan.salt, _JITTERED_STEPS),
        )
        samples, steps, censored = whole.samples, whole.steps, None
        if plan.budget:
            budget, classes = parse_budget(plan.budget), parse_classes(plan.classes)
            samples, steps, censored = cut_at_loss(whole, budget, classes)
        replay_s = _end_s(whole) if censored is None else censored.cut_s
        began_at = self._clock_s
        self._pass(replay_s)
        on_progress(_progress("replay", len(samples), int(samples.output_tokens.sum())))
        return ReplayResult(
            samples=samples,
            steps=steps,
            warmup=Warmup(requests=0, passes=0, drift=None, seconds=0.0),
            replay_s=replay_s,
            began_at=began_at,
            ended_at=self._clock_s,
            errors=_errors(whole),
            censored=censored,
        )

    def stop(self) -> float:
        self._info = None
        return 0.0

    def close(self) -> None:
        self._info = None

    def kill(self) -> None:
        self._info = None

    def running(self) -> frozenset[Process]:
        """None: no process runs."""
        return frozenset()

    def clock(self) -> float:
        """Return the seconds that have passed on paper."""
        return self._clock_s

    def wait(self, seconds: float) -> None:
        """Let time pass for the engines alone."""
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        """Let time pass, in strides between which it may be cut short."""
        end_s = self._clock_s + seconds
        if self.pulse is not None:
            while self._clock_s + _STRIDE_S < end_s:
                self._clock_s += _STRIDE_S
                self.pulse()
        self._clock_s = end_s

    def _shape(self) -> EngineShape:
        if self._info is None:
            raise TrialFailed(Failure("engine_dead", "no engine was started"))
        return shape_of(self._info, delivery_s=self.profile.delivery_s)

    def _of(self, trace: Trace, shape: EngineShape) -> Traffic:
        """Return a trace as simulations need it; trials share it."""
        kept = self._traffic
        if kept is None or kept[0] is not trace or kept[1] != shape:
            kept = self._traffic = trace, shape, Traffic.of(trace, shape)
        return kept[2]

    def _random(self, salt: str) -> np.random.Generator:
        digest = hashlib.blake2b(salt.encode(), digest_size=8).digest()
        return np.random.default_rng([self._seed, int.from_bytes(digest)])

    def _jitter(self, salt: str, size: int) -> F8:
        """Return how many times as long steps take by chance: their run, themselves, stalls."""
        noise, random = self.profile.noise, self._random(salt)
        logs = random.normal(0.0, noise.run) + random.normal(0.0, noise.step, size)
        stalled = random.random(size) < noise.stalls
        return np.asarray(np.exp(logs) * np.where(stalled, noise.stall_factor, 1.0))

    def _given(self, engine_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments of an engine with these; None leaves one open."""
        given = {name: value for name, value in engine_args.items() if value is not None}
        return {**_UNSAID, **self.profile.info.resolved, **given}

    def _resolve(self, engine_args: Mapping[str, Any]) -> EngineInfo:
        info, resolved = self.profile.info, self._given(engine_args)
        model = str(resolved.pop("model", SIMULATED))
        obstacle = info.live_obstacle
        if not resolved.get("enable_chunked_prefill", True):
            obstacle = "enable_chunked_prefill is false"
        return replace(
            info,
            device=f"{info.device}, simulated (profile {self.profile.name})",
            device_uuids=(),
            model=info.model if model.startswith(SIMULATED) else model,
            resolved=resolved,
            kv_cache_tokens=None,
            live_obstacle=obstacle,
        )


def _flag(name: str, value: object) -> dict[str, str | None]:
    """Return how ``vllm serve`` spells an argument, by its naming rule."""
    words = name.replace("_", "-")
    negative = f"--no-{words}" if isinstance(value, bool) else None
    return {"flag": f"--{words}", "negative": negative, "default": None}


def _progress(stage: str, total: int, tokens: int) -> dict[str, Any]:
    return {"stage": stage, "total": total, "sent": total, "done": total, "tokens": tokens}


def _end_s(whole: Simulated) -> float:
    """Return when the last token came."""
    last_s = whole.samples.last_token_s
    came = last_s[~np.isnan(last_s)]
    return float(came.max() if came.size else whole.samples.scheduled_s.max())


def _errors(whole: Simulated) -> tuple[str, ...]:
    failed = int(whole.samples.failed.sum())
    return (f"{failed} requests never fit the KV cache",) if failed else ()
