"""A stat logger of vLLM that captures lengths, arrivals and times; it sees no content.

vLLM imports this module and makes the loggers, in the process that serves: see
``autotune.engine.capture_plugin``. It says nothing of requests whose client went away: vLLM does
not count them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from autotune.traffic.capture.clock import steadied
from autotune.traffic.capture.environment import ServerRecorder
from autotune.traffic.capture.middleware import in_place
from autotune.traffic.capture.record import Ending, Record
from autotune.traffic.capture.recorder import Recorder, say_on_stderr

_ENDINGS: Mapping[str, Ending] = {"abort": "cancelled", "error": "failed"}

_of_process: list[ServerRecorder] = []


class CaptureStatLogger(StatLoggerBase):  # type: ignore[misc]
    """Records every request that ends.

    Args:
        vllm_config: vLLM's configuration, of which the model's name is read.
        engine_index: of several engines behind one server; they share a recorder.
        open_recorder: makes the recorder, None if nothing is to be recorded.
    """

    def __init__(
        self,
        vllm_config: Any,
        engine_index: int = 0,
        *,
        open_recorder: Callable[[], Recorder | None] | None = None,
    ) -> None:
        self.engine_index = engine_index
        self._model = _model_name(vllm_config)
        self._open = recorder_of_process if open_recorder is None else open_recorder
        self._recorder: Recorder | None = None
        self._opened = False
        self._complained = False

    def record(
        self,
        scheduler_stats: Any,  # noqa: ARG002
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Record the requests that ended in a step."""
        try:
            finished = getattr(iteration_stats, "finished_requests", ())
            if not finished:
                return
            if not self._opened:
                self._opened = True
                self._recorder = self._open()
            if self._recorder is not None:
                now_s = steadied(iteration_stats.iteration_timestamp)
                for each in finished:
                    self._recorder.put(record_of(each, now_s=now_s, model=self._model))
        # An exception here would end vLLM's output handler, and every request with it.
        except Exception as error:  # noqa: BLE001
            if not self._complained:
                self._complained = True
                say_on_stderr(f"requests pass unrecorded: {type(error).__name__}")

    def log_engine_initialized(self) -> None:
        """Do nothing: vLLM requires the method."""


def recorder_of_process() -> Recorder | None:
    """Return the recorder of this process, None if a middleware records already."""
    if in_place():
        say_on_stderr("the middleware records; the stat logger does not")
        return None
    if not _of_process:
        _of_process.append(ServerRecorder(os.environ, by="stat-logger"))
    return _of_process[0].recorder


def record_of(finished: Any, *, now_s: float, model: str | None) -> Record:
    """Return the record of vLLM's ``FinishedRequestStats``; ``now_s`` is when it ended."""
    ttft_s = finished.queued_time + finished.prefill_time
    return Record(
        arrival_s=now_s - finished.e2e_latency,
        ending=_ENDINGS.get(str(finished.finish_reason), "completed"),
        prompt_tokens=finished.num_prompt_tokens or None,
        output_tokens=finished.num_generation_tokens or None,
        cached_tokens=finished.num_cached_tokens,
        max_tokens=finished.max_tokens_param,
        model=model,
        ttft_ms=round(ttft_s * 1e3, 3) if finished.num_generation_tokens else None,
        e2e_ms=round(finished.e2e_latency * 1e3, 3),
    )


def _model_name(vllm_config: Any) -> str | None:
    config = getattr(vllm_config, "model_config", None)
    name = getattr(config, "served_model_name", None) or getattr(config, "model", None)
    if isinstance(name, list):
        name = name[0] if name else None
    return name if isinstance(name, str) else None
