"""What can be said before a study: the KV bill of a model, and whether traffic fits it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.demo import resolve_model
from autotune.engine.protocol import EngineInfo, TrialFailed
from autotune.hardware.config_file import load_config
from autotune.hardware.kv_bill import KvBill, kv_bill
from autotune.hardware.kv_pool import KvPool, make_pool
from autotune.hardware.model_shape import EngineDecides
from autotune.settings import TuneSettings
from autotune.study.arguments import check_arguments
from autotune.study.chunking import Chunking, chunking_of
from autotune.study.kv_fit import Need, peak_need, pool_rules, whole_number
from autotune.study.session import (
    Follower,
    describe_engine,
    end_earlier_runs,
    engine_lease,
    log_of_one_engine,
    open_supervisor,
    read_traffic,
)
from autotune.traffic.inspect import enough_model_len
from autotune.traffic.model import Trace

_NAME = "doctor"
_TOLD = (
    "async_scheduling",
    "block_size",
    "disable_hybrid_kv_cache_manager",
    "dtype",
    "enable_chunked_prefill",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "kv_cache_memory_bytes",
    "long_prefill_token_threshold",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
)


@dataclass(frozen=True, slots=True)
class Engine:
    """What is known of the engine.

    Attributes:
        arguments: as vLLM resolves them; the user's alone where there is no vLLM.
        info: what vLLM says of itself, None where there is none.
        started: whether ``info`` is that of a started engine.
        failure: why the engine did not start, None if it did or was not to.
        log: of the engine that was to start, else None.
    """

    arguments: Mapping[str, Any]
    info: EngineInfo | None = None
    started: bool = False
    failure: str | None = None
    log: Path | None = None

    @property
    def reported_tokens(self) -> int | None:
        """The size of the KV cache that a started engine reports."""
        return self.info.kv_cache_tokens if self.info is not None and self.started else None

    def number(self, name: str) -> int | None:
        """Return an argument that is a whole number above 0, None if it is not known."""
        return whole_number(self.arguments, name)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a trace asks for; see ``peak_need`` and ``chunking_of``.

    ``enough_model_len`` is its longest request, rounded up.
    """

    trace: Trace
    enough_model_len: int
    need: Need
    chunking: Chunking


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was found out about a model, an engine for it, and traffic."""

    model: str
    bill: KvBill | EngineDecides
    pool: KvPool | EngineDecides
    engine: Engine
    traffic: Traffic | None

    @property
    def estimated_tokens(self) -> int | None:
        """Our own figure for the size of the KV cache, where its memory is fixed."""
        memory_bytes = self.engine.number("kv_cache_memory_bytes")
        if memory_bytes is None or isinstance(self.pool, EngineDecides):
            return None
        return self.pool.tokens_in(memory_bytes)

    @property
    def cache_tokens(self) -> int | None:
        """The size of the KV cache: what an engine reports, else what we estimate."""
        reported = self.engine.reported_tokens
        return self.estimated_tokens if reported is None else reported

    @property
    def peak_share(self) -> float | None:
        """What the traffic's peak takes of the cache, 1 for all of it; None if unknown."""
        size = self.cache_tokens
        if self.traffic is None or not size:
            return None
        need = self.traffic.need
        if need.blocks is None or isinstance(self.pool, EngineDecides):
            return need.tokens / size
        # Block 0 is the engine's own.
        return need.blocks / max(self.pool.blocks_of_size(size) - 1, 1)

    def request_bytes(self, tokens: int | None) -> int | None:
        """Return what one request of that length keeps, None if it cannot be counted."""
        if tokens is None or isinstance(self.bill, EngineDecides):
            return None
        return self.bill.request_bytes(tokens)


def check_up(settings: TuneSettings, follower: Follower, *, start: bool) -> Checkup:
    """Find out what the KV cache costs, and what vLLM makes of the arguments if there is one.

    Args:
        settings: model and engine arguments; the trace may be ''.
        follower: told what takes time.
        start: whether to start an engine with exactly these arguments.

    Raises:
        TraceError, UsageError: trace or arguments cannot be used.
        EnvironmentFault: the model has no readable config, or vLLM cannot be asked.
    """
    check_arguments(settings.engine_args)
    config = load_config(str(resolve_model(settings.model)))
    trace = read_traffic(settings).trace if settings.trace else None
    if trace is not None:
        for sentence in trace.notes.sentences():
            follower.say(sentence)
    if start or _has_vllm():
        engine = _ask_vllm(settings, follower, start=start)
    else:
        engine = Engine(settings.engine_args)
    bill = kv_bill(
        config,
        kv_cache_dtype=str(engine.arguments.get("kv_cache_dtype", "auto")),
        dtype=str(engine.arguments.get("dtype", "auto")),
        tensor_parallel_size=engine.number("tensor_parallel_size") or 1,
    )
    pool = _pool(bill, engine)
    context = None if isinstance(bill, EngineDecides) else bill.shape.context_tokens
    traffic = None if trace is None else _traffic(trace, engine, pool, context)
    return Checkup(settings.model, bill, pool, engine, traffic)


def _pool(bill: KvBill | EngineDecides, engine: Engine) -> KvPool | EngineDecides:
    if isinstance(bill, EngineDecides):
        return bill
    rules = pool_rules(engine.arguments)
    return rules if isinstance(rules, EngineDecides) else make_pool(bill, rules)


def _traffic(
    trace: Trace, engine: Engine, pool: KvPool | EngineDecides, context: int | None
) -> Traffic:
    longest = trace.longest_request
    enough = enough_model_len(longest, model_allows=context)
    need = peak_need(
        trace,
        max_num_seqs=engine.number("max_num_seqs"),
        pool=None if isinstance(pool, EngineDecides) else pool,
    )
    return Traffic(trace, enough, need, chunking_of(trace, engine.arguments))


def _has_vllm() -> bool:
    try:
        return importlib.util.find_spec("vllm") is not None
    except ModuleNotFoundError:
        return False


def _ask_vllm(settings: TuneSettings, follower: Follower, *, start: bool) -> Engine:
    with ExitStack() as stack:
        end_earlier_runs(follower.say)
        supervisor = stack.enter_context(open_supervisor(settings, _NAME))
        follower.say("asking vLLM for its defaults")
        info = describe_engine(settings, supervisor).info
        engine = Engine({**settings.engine_args, **info.resolved}, info)
        if not start:
            return engine
        stack.enter_context(engine_lease(supervisor, info))
        log = log_of_one_engine(settings, _NAME)
        follower.say("starting an engine")
        try:
            info = supervisor.start({**settings.engine_args, "model": info.model}, log).info
        except TrialFailed as outcome:
            return replace(engine, failure=str(outcome), log=log)
        # What it said counts even if the engine will not go quietly.
        with suppress(TrialFailed):
            supervisor.stop()
        return Engine({**settings.engine_args, **info.resolved}, info, started=True, log=log)


def checkup_json(checkup: Checkup) -> dict[str, Any]:
    """Return a checkup as plain JSON values, without its findings."""
    engine, info = checkup.engine, checkup.engine.info
    estimated, reported = checkup.estimated_tokens, engine.reported_tokens
    uncounted = checkup.pool.reason if isinstance(checkup.pool, EngineDecides) else None
    return {
        "model": checkup.model,
        "kv": bill_json(checkup.bill),
        "engine": {
            "vllm_version": None if info is None else info.vllm_version,
            "device": None if info is None else info.device,
            "started": engine.started,
            "failure": engine.failure,
            "arguments": {name: engine.arguments.get(name) for name in _TOLD},
            "estimated_tokens": estimated,
            "reported_tokens": reported,
            "ratio": estimated / reported if estimated and reported else None,
            "engine_decides": uncounted,
        },
        "traffic": None if checkup.traffic is None else traffic_json(checkup, checkup.traffic),
    }


def bill_json(bill: KvBill | EngineDecides) -> dict[str, Any]:
    """Return the bill by the names of its values; with the reason alone if there is none."""
    if isinstance(bill, EngineDecides):
        return {"engine_decides": bill.reason}
    longest = bill.shape.context_tokens
    return {
        "engine_decides": None,
        "layers": [
            {**asdict(each), "bytes_per_token": bill.layer_bytes(each)}
            for each in bill.shape.layers
        ],
        "element_bytes": bill.element_bytes,
        "tensor_parallel_size": bill.tensor_parallel_size,
        "bytes_per_token": bill.bytes_per_token,
        "bytes_per_token_unbounded": bill.bytes_per_token_unbounded,
        "window_bytes": bill.window_bytes,
        "keeps_state": bill.keeps_state,
        "context_tokens": longest,
        "context_bytes": None if longest is None else bill.request_bytes(longest),
    }


def traffic_json(checkup: Checkup, traffic: Traffic) -> dict[str, Any]:
    """Return what the trace asks for, in tokens and bytes."""
    longest, enough = traffic.trace.longest_request, traffic.enough_model_len
    return {
        "requests": len(traffic.trace.requests),
        "longest_request": longest,
        "longest_request_bytes": checkup.request_bytes(longest),
        "recommended_max_model_len": enough,
        "recommended_bytes": checkup.request_bytes(enough),
        "open_requests": traffic.need.open_requests,
        "peak_tokens": traffic.need.tokens,
        "peak_blocks": traffic.need.blocks,
        "bound_tokens": traffic.need.bound_tokens,
        "peak_share": checkup.peak_share,
        "chunked_prefill": traffic.chunking.code,
        "chunk_tokens": traffic.chunking.chunk_tokens,
        "prompts_over": traffic.chunking.prompts_over,
    }
