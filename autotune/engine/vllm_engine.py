"""The one place, beside the scheduler, that imports vLLM: configurations and engines.

Runs in the engine host only. An engine is started through the Python API with the usage context
of the API server, so that whatever the user leaves open gets the value that ``vllm serve`` would
give it on this hardware.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from autotune.engine.flops import work_of
from autotune.engine.protocol import EngineInfo, Schedule
from autotune.engine.simulable import forecast_obstacle
from autotune.traffic.replay import RequestFailed
from objectives.steps import COLUMNS, Steps

OBSERVATION_ARGUMENTS: Mapping[str, Any] = {
    # The scheduler records the steps; vLLM's own statistics would cost time in this process.
    "disable_log_stats": True,
}
"""Arguments added to every engine: they watch, and change neither schedule nor memory."""

_SCHEDULERS = "autotune.engine.scheduler"
_TIMES = [COLUMNS.index(name) for name in ("begun_s", "planned_s", "done_s")]
_DRAIN_POLL_S = 0.02
_DRAIN_POLLS = 1500

SHUTDOWN_TIMEOUT_S = 30.0
"""Twice what a clean stop took at most; vLLM's own default of 5 s kills it half way."""


def engine_argument_names() -> tuple[str, ...]:
    """Return the names of all engine arguments that the installed vLLM has."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    return tuple(field.name for field in dataclasses.fields(AsyncEngineArgs))


def build_config(engine_args: Mapping[str, Any]) -> Any:
    """Return the ``VllmConfig`` that ``vllm serve`` would run with.

    Raises:
        ValueError, TypeError: vLLM refuses the arguments, with its own words.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    arguments = AsyncEngineArgs(**{**engine_args, **OBSERVATION_ARGUMENTS})
    return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)


def describe_config(config: Any) -> EngineInfo:
    """Return what a configuration resolves to; the KV cache size needs a started engine."""
    import torch
    import vllm

    parallel = config.parallel_config
    device, uuids = _devices(parallel.world_size * max(1, parallel.data_parallel_size_local))
    cache = config.cache_config
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    return EngineInfo(
        vllm_version=vllm.__version__,
        torch_version=str(torch.__version__),
        device=device,
        device_uuids=uuids,
        model=str(config.model_config.model),
        resolved=_resolved(config),
        vocab_size=int(config.model_config.get_vocab_size()),
        kv_cache_tokens=None if tokens is None else int(tokens),
        capture_sizes=tuple(config.compilation_config.cudagraph_capture_sizes or ()),
        live_obstacle=live_obstacle(config),
        forecast_obstacle=forecast_obstacle(config),
        work=work_of(config),
    )


def _resolved(config: Any) -> dict[str, Any]:
    """Return the engine arguments as resolved, looked up by name in vLLM's sub-configurations."""
    parts = (
        config.scheduler_config,
        config.cache_config,
        config.parallel_config,
        config.model_config,
        config.load_config,
    )
    resolved = {}
    for name in engine_argument_names():
        for part in parts:
            value = getattr(part, name, None)
            if isinstance(value, bool | int | float | str):
                resolved[name] = value
                break
    # The two that the sub-configurations call or keep otherwise.
    resolved["scheduling_policy"] = str(config.scheduler_config.policy)
    resolved["dtype"] = str(config.model_config.dtype).removeprefix("torch.")
    return resolved


def _devices(world_size: int) -> tuple[str, tuple[str, ...]]:
    """Return the name of the first device, and the UUIDs of the GPUs in use."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        return (names[0] if names else "CPU"), ()
    uuids = tuple(str(current_platform.get_device_uuid(rank)) for rank in range(world_size))
    return current_platform.get_device_name(), uuids


def live_obstacle(config: Any) -> str | None:
    """Return why limits could not be changed on an engine of this configuration, None if they can.

    The running engine is asked as well, once there is one: see ``VllmEngine.obstacle``.
    """
    return next(_obstacles(config), None)


def _obstacles(config: Any) -> Iterator[str]:
    scheduler = config.scheduler_config
    if _own_scheduler(config) is not None:
        yield "scheduler_cls is given"
    if config.parallel_config.data_parallel_size > 1:
        yield "data_parallel_size is more than 1"
    # A prompt longer than the limit would wait for ever; vLLM refuses such a start.
    if not getattr(scheduler, "enable_chunked_prefill", True):
        yield "enable_chunked_prefill is false"
    # Each of these makes vLLM derive from the limits what a running engine keeps.
    if config.speculative_config is not None:
        yield "speculative decoding derives further limits from max_num_batched_tokens"
    if getattr(scheduler, "long_prefill_token_threshold_adaptive", False):
        yield "long_prefill_token_threshold_adaptive follows max_num_batched_tokens"
    for name in ("max_num_scheduled_tokens", "max_num_active_seqs"):
        if getattr(scheduler, name, None) is not None:
            yield f"{name} is given"


def _own_scheduler(config: Any) -> Any:
    """Return the scheduler class that the user has given, None if there is none."""
    chosen = config.scheduler_config.scheduler_cls
    return None if isinstance(chosen, str) and chosen.startswith(f"{_SCHEDULERS}.") else chosen


def watch(config: Any) -> None:
    """Have the engine record its steps, unless the user brings a scheduler."""
    if _own_scheduler(config) is None:
        asynchronous = config.scheduler_config.async_scheduling
        name = "WatchedAsyncScheduler" if asynchronous else "WatchedScheduler"
        config.scheduler_config.scheduler_cls = f"{_SCHEDULERS}.{name}"


class VllmEngine:
    """One started ``AsyncLLM``; a ``TokenSource`` for replays."""

    def __init__(self, llm: Any) -> None:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineGenerateError

        self._llm = llm
        self._watched = _own_scheduler(llm.vllm_config) is None
        self._sampling_params = SamplingParams
        self._tokens_input = tokens_input
        self._delta = RequestOutputKind.DELTA
        self._request_error = EngineGenerateError
        self._cached: dict[str, int] = {}

    @classmethod
    def start(cls, engine_args: Mapping[str, Any]) -> Self:
        """Build an engine; blocks the running event loop until it is ready.

        Raises:
            ValueError, TypeError: vLLM refuses the arguments.
            RuntimeError: the engine did not come up; its output says why.
        """
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        config = build_config(engine_args)
        watch(config)
        llm = AsyncLLM.from_vllm_config(
            config, usage_context=UsageContext.OPENAI_API_SERVER, disable_log_stats=True
        )
        return cls(llm)

    def info(self) -> EngineInfo:
        return describe_config(self._llm.vllm_config)

    async def obstacle(self) -> str | None:
        """Return why limits cannot be changed on this engine, None if they can."""
        return live_obstacle(self._llm.vllm_config) or await self._call("autotune_obstacle")

    async def set_limits(self, limits: Mapping[str, int]) -> Mapping[str, int]:
        """Set ``LIVE_LIMITS`` once all requests are finished; return those that now hold.

        Raises:
            TimeoutError: requests stay unfinished.
            Exception: as vLLM passes on what its engine raises, of no class of its own.
        """
        for _ in range(_DRAIN_POLLS):
            now = await self._call("autotune_set_limits", dict(limits))
            if now is not None:
                return dict(now)
            await asyncio.sleep(_DRAIN_POLL_S)
        raise TimeoutError("requests stay unfinished")

    async def pace(self, *, held: bool = False, one_in_flight: bool = False) -> None:
        """Hold all steps back, or plan each only when the one before it is done."""
        await self._call("autotune_pace", held, one_in_flight)

    async def record(self, *, steps: bool = True, detail: bool = False) -> None:
        """Say whether steps are recorded, and with them who computed how many tokens."""
        if self._watched:
            await self._call("autotune_record", steps, detail)

    async def _call(self, name: str, *arguments: Any) -> Any:
        return await self._llm.engine_core.call_utility_async(name, *arguments)

    async def generate(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        *,
        request_id: str,
        salt: str,
        priority: int,
    ) -> AsyncIterator[int]:
        """See ``TokenSource.generate``."""
        params = self._sampling_params(
            max_tokens=output_tokens,
            min_tokens=output_tokens,
            ignore_eos=True,
            detokenize=False,
            temperature=0.0,
            output_kind=self._delta,
        )
        inputs = self._tokens_input(prompt, cache_salt=salt)
        try:
            async for output in self._llm.generate(inputs, params, request_id, priority=priority):
                if output.finished:
                    self._cached[request_id] = output.num_cached_tokens or 0
                yield len(output.outputs[0].token_ids)
        except (self._request_error, ValueError) as error:
            raise RequestFailed(str(error)) from error

    def cached_tokens(self, request_id: str) -> int:
        return self._cached.pop(request_id, 0)

    async def reset_prefix_cache(self) -> None:
        await self._llm.reset_prefix_cache()

    async def take_steps(self, *, started_at: float) -> tuple[Steps, Schedule]:
        """Return and forget what was recorded; times count from ``started_at`` (perf_counter).

        Nothing with a scheduler of the user's own.
        """
        if not self._watched:
            return Steps.from_rows(np.empty((0, len(COLUMNS)))), Schedule.empty()
        taken = await self._call("autotune_take")
        rows = np.frombuffer(taken["rows"], dtype=np.float64).reshape(-1, len(COLUMNS)).copy()
        rows[:, _TIMES] -= started_at
        # A step that was in flight when the engine was asked says nothing.
        done = ~np.isnan(rows[:, COLUMNS.index("done_s")])
        return Steps.from_rows(rows[done]), Schedule.build(taken["shares"], taken["arrivals"])

    def stop(self) -> None:
        """Shut the engine down and wait until its processes are gone."""
        self._llm.shutdown(timeout=SHUTDOWN_TIMEOUT_S)
