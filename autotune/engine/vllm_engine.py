"""The one place, beside the scheduler, that imports vLLM: configurations and engines.

Runs in the engine host only. An engine is started through the Python API with the usage context
of the API server, so that whatever the user leaves open gets the value that ``vllm serve`` would
give it on this hardware.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from autotune.engine.protocol import EngineInfo, Iterations
from autotune.traffic.replay import RequestFailed

OBSERVATION_ARGUMENTS: Mapping[str, Any] = {
    # Statistics come through our own logger; vLLM's would write a line an iteration.
    "disable_log_stats": True,
    "enable_logging_iteration_details": True,
}
"""Arguments added to every engine: they watch, and change neither schedule nor memory."""

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


def _new_recorder() -> Any:
    """Return a stat logger factory with a ``rows`` list that its loggers append to."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class IterationRecorder(StatLoggerBase):  # type: ignore[misc]
        """Appends one tuple an iteration; an exception here would fail every request."""

        rows: ClassVar[list[tuple[float, int, int, int, int, float, int, int]]] = []
        faults: ClassVar[list[Exception]] = []

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def log_engine_initialized(self) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            # vLLM fails every request if a logger raises; what went wrong is raised later.
            try:
                self._append(scheduler_stats, iteration_stats)
            except Exception as error:  # noqa: BLE001
                self.faults.append(error)

        def _append(self, scheduler_stats: Any, iteration_stats: Any) -> None:
            details = getattr(scheduler_stats, "iteration_details", None)
            if details is None or details.is_dummy:
                return
            in_step = details.num_ctx_requests + details.num_generation_requests
            preempted = iteration_stats.num_preempted_reqs if iteration_stats else 0
            gaps = len(iteration_stats.inter_token_latencies_iter) if iteration_stats else 0
            self.rows.append(
                (
                    time.perf_counter(),
                    details.num_ctx_tokens,
                    details.num_generation_requests,
                    # The count after the step lacks the requests that ended with it.
                    max(scheduler_stats.num_running_reqs, in_step),
                    scheduler_stats.num_waiting_reqs,
                    scheduler_stats.kv_cache_usage,
                    preempted,
                    gaps,
                )
            )

    return IterationRecorder


class VllmEngine:
    """One started ``AsyncLLM``; a ``TokenSource`` for replays."""

    def __init__(self, llm: Any, recorder: Any) -> None:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineGenerateError

        self._llm = llm
        self._recorder = recorder
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

        recorder = _new_recorder()
        llm = AsyncLLM.from_vllm_config(
            build_config(engine_args),
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=[recorder],
            disable_log_stats=True,
        )
        return cls(llm, recorder)

    def info(self) -> EngineInfo:
        return describe_config(self._llm.vllm_config)

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

    def take_iterations(self, *, started_at: float) -> Iterations:
        """Return and forget what was recorded; times count from ``started_at`` (perf_counter).

        Raises:
            RuntimeError: the installed vLLM reports iterations in another form.
        """
        if self._recorder.faults:
            fault = self._recorder.faults[0]
            self._recorder.faults.clear()
            raise RuntimeError("this vLLM reports iterations in an unknown form") from fault
        rows = np.array(self._recorder.rows, dtype=np.float64).reshape(-1, 8)
        self._recorder.rows.clear()
        counts = rows.astype(np.int64)
        return Iterations(
            at_s=rows[:, 0] - started_at,
            prefill_tokens=counts[:, 1],
            decode_requests=counts[:, 2],
            running=counts[:, 3],
            waiting=counts[:, 4],
            kv_usage=rows[:, 5],
            preemptions=counts[:, 6],
            gaps=counts[:, 7],
        )

    def stop(self) -> None:
        """Shut the engine down and wait until its processes are gone."""
        self._llm.shutdown(timeout=SHUTDOWN_TIMEOUT_S)
