"""vLLM's scheduler with a recorder in it, and with limits that can change between replays.

vLLM imports this module in its EngineCore process, since ``vllm_engine`` names one of the two
classes as ``scheduler_cls``. The import also gives EngineCore the functions that the host calls
through vLLM's own utility calls, which are answered: what they changed holds when they return.

The classes decide nothing: what is scheduled, and when, is vLLM's. The cost of the recorder is a
few sums over lists that vLLM has made already.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from autotune.candidates.live import LIVE_LIMITS, THRESHOLD
from objectives.steps import COLUMNS

_DONE = COLUMNS.index("done_s")
_WIDTH = len(COLUMNS)


class Recorder:
    """Keeps one row a step, and if wanted who computed how many tokens in it.

    Attributes:
        on: whether to keep anything.
        detail: whether to keep the tokens of each request, and the step at which it arrived.
    """

    def __init__(self) -> None:
        self.on = True
        self.detail = False
        self._cells = array("d")
        self._in_flight: deque[int] = deque()
        self._shares: list[tuple[int, str, int]] = []
        self._arrivals: dict[str, int] = {}

    @property
    def in_flight(self) -> int:
        """How many steps are planned and not done."""
        return len(self._in_flight)

    @property
    def steps(self) -> int:
        return len(self._cells) // _WIDTH

    def arrived(self, request_id: str) -> None:
        if self.detail:
            self._arrivals[request_id] = self.steps

    def planned(self, scheduler: Scheduler, output: Any, begun_s: float) -> None:
        """Note a step that computes something, as vLLM has just planned it."""
        planned_s = time.perf_counter()
        scheduled = output.num_scheduled_tokens
        prefill, pairs, context, prefilling = _prefill(output)
        cached = output.scheduled_cached_reqs.num_computed_tokens
        decoding = len(scheduled) - prefilling
        tokens = output.total_num_scheduled_tokens
        # Contexts after the step: what was computed before it, and what it adds.
        decode_context = sum(cached) + tokens - prefill - context
        preempted = output.preempted_req_ids
        running, waiting = scheduler.get_request_counts()
        self._in_flight.append(len(self._cells) + _DONE)
        if self.detail:
            step = self.steps
            self._shares += [(step, name, count) for name, count in scheduled.items()]
        self._cells.extend(
            (
                begun_s,
                planned_s,
                float("nan"),
                prefill,
                decoding,
                len(scheduled),
                running,
                waiting,
                scheduler.kv_cache_manager.usage,
                len(preempted) if preempted else 0,
                sum(cached) + tokens + _computed_by_new(output),
                decode_context,
                pairs,
            )
        )

    def done(self) -> None:
        """Note that the oldest step in flight is done."""
        if self._in_flight:
            self._cells[self._in_flight.popleft()] = time.perf_counter()

    def take(self) -> dict[str, Any]:
        """Return and forget everything, in what vLLM's messages can carry."""
        rows, shares, arrivals = self._cells.tobytes(), self._shares, self._arrivals
        self._cells = array("d")
        self._in_flight.clear()
        self._shares, self._arrivals = [], {}
        return {"rows": rows, "shares": shares, "arrivals": list(arrivals.items())}


def _computed_by_new(output: Any) -> int:
    """Return the cached tokens of requests that are new in this step."""
    return sum(new.num_computed_tokens for new in output.scheduled_new_reqs)


def _prefill(output: Any) -> tuple[int, int, int, int]:
    """Return tokens and attention pairs of the prefill, cached contexts, and its requests.

    The contexts are of those that are not new, before the step. A request is in its prefill
    until its first token, and again after a preemption; a decoding request computes one token,
    or those that speculation proposed.
    """
    scheduled = output.num_scheduled_tokens
    tokens = pairs = contexts = requests = 0
    for new in output.scheduled_new_reqs:
        count = scheduled[new.req_id]
        tokens += count
        pairs += _pairs(count, new.num_computed_tokens)
        requests += 1
    cached = output.scheduled_cached_reqs
    resumed, speculating = cached.resumed_req_ids, output.scheduled_spec_decode_tokens
    ones = output.total_num_scheduled_tokens - tokens == len(cached.req_ids)
    if ones and not resumed and 0 not in cached.num_output_tokens:
        return tokens, pairs, contexts, requests
    for name, computed, outputs in zip(
        cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
    ):
        count = scheduled[name]
        if outputs == 0 or name in resumed or (count > 1 and name not in speculating):
            tokens += count
            pairs += _pairs(count, computed)
            contexts += computed
            requests += 1
    return tokens, pairs, contexts, requests


def _pairs(count: int, before: int) -> int:
    """Return how many (token, context) pairs causal attention has over ``count`` new tokens."""
    return count * before + count * (count + 1) // 2


class _Watched:
    """What both schedulers add to vLLM's; mixed in before it."""

    max_num_scheduled_tokens: int
    scheduler_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder = Recorder()
        self.held = False
        self.one_in_flight = False

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self.held or (self.one_in_flight and self.recorder.in_flight):
            return self._schedule_nothing(*args, **kwargs)
        if not self.recorder.on:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        begun_s = time.perf_counter()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if output.total_num_scheduled_tokens:
            self.recorder.planned(self, output, begun_s)
        return output

    def _schedule_nothing(self, *args: Any, **kwargs: Any) -> Any:
        """Return an empty step, made by vLLM itself, which has them anyway while it is paused."""
        budget, self.max_num_scheduled_tokens = self.max_num_scheduled_tokens, 0
        try:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.max_num_scheduled_tokens = budget

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            self.recorder.done()
        return super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]

    def add_request(self, request: Any) -> Any:
        self.recorder.arrived(request.request_id)
        return super().add_request(request)  # type: ignore[misc]


class WatchedScheduler(_Watched, Scheduler):  # type: ignore[misc]
    """For engines without asynchronous scheduling."""


class WatchedAsyncScheduler(_Watched, AsyncScheduler):  # type: ignore[misc]
    """For engines with it."""


def obstacle(scheduler: Any) -> str | None:
    """Return what this scheduler lacks for limits to be changed while it runs, None if nothing."""
    if not isinstance(scheduler, _Watched):
        return f"the engine runs {type(scheduler).__name__}, not our scheduler"
    if not hasattr(scheduler, "max_num_scheduled_tokens"):
        return "this vLLM has no max_num_scheduled_tokens"
    if not hasattr(scheduler, _admission_cap(scheduler)):
        return "this vLLM has no max_num_running_reqs"
    if not hasattr(scheduler.scheduler_config, THRESHOLD):
        return f"this vLLM has no {THRESHOLD}"
    return None


def _admission_cap(scheduler: Any) -> str:
    """Return the attribute that admission looks at: a newer vLLM has one for it alone."""
    newer = "max_num_active_reqs"
    return newer if hasattr(scheduler, newer) else "max_num_running_reqs"


def set_limits(scheduler: Any, limits: Mapping[str, int]) -> dict[str, int]:
    """Set the limits of a drained scheduler; return those that now hold.

    Raises:
        RuntimeError: requests are unfinished: an older vLLM ends when more of them run than the
            new cap allows.
        ValueError: a limit is beyond what the engine was started with.
    """
    if scheduler.has_unfinished_requests():
        raise RuntimeError("limits change between replays only, and requests are unfinished")
    config = scheduler.scheduler_config
    tokens, seqs, threshold = (limits[name] for name in LIVE_LIMITS)
    if not 1 <= tokens <= config.max_num_batched_tokens:
        raise ValueError(f"{tokens} tokens a step, of at most {config.max_num_batched_tokens}")
    if not 1 <= seqs <= config.max_num_seqs:
        raise ValueError(f"{seqs} sequences, of at most {config.max_num_seqs}")
    cap = _admission_cap(scheduler)
    scheduler.max_num_scheduled_tokens = tokens
    setattr(scheduler, cap, seqs)
    setattr(config, THRESHOLD, threshold)
    now = scheduler.max_num_scheduled_tokens, getattr(scheduler, cap), getattr(config, THRESHOLD)
    return dict(zip(LIVE_LIMITS, now, strict=True))


# What the host calls. Each takes EngineCore for self.


def _core_obstacle(core: Any) -> str | None:
    return obstacle(core.scheduler)


def _core_set_limits(core: Any, limits: Mapping[str, int]) -> dict[str, int] | None:
    """Return None, and change nothing, until the scheduler is drained."""
    if core.scheduler.has_unfinished_requests():
        return None
    return set_limits(core.scheduler, limits)


def _core_pace(core: Any, held: bool, one_in_flight: bool) -> None:
    core.scheduler.held = held
    core.scheduler.one_in_flight = one_in_flight


def _core_record(core: Any, on: bool, detail: bool) -> None:
    core.scheduler.recorder.on = on
    core.scheduler.recorder.detail = detail


def _core_take(core: Any) -> dict[str, Any]:
    taken: dict[str, Any] = core.scheduler.recorder.take()
    return taken


EngineCore.autotune_obstacle = _core_obstacle
EngineCore.autotune_set_limits = _core_set_limits
EngineCore.autotune_pace = _core_pace
EngineCore.autotune_record = _core_record
EngineCore.autotune_take = _core_take
