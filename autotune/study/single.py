"""One replay on its own, reported under the names of ``vllm bench serve``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np

from autotune.candidates.diagnosis import gaps_beside_prefill
from autotune.engine.protocol import EngineInfo, ReplayPlan, ReplayResult, TrialFailed
from autotune.errors import EnvironmentFault
from autotune.settings import TuneSettings
from autotune.study.replays import client_bound, first_warmup_requests, warmup_requests
from autotune.study.session import (
    Follower,
    Traffic,
    describe_engine,
    end_earlier_runs,
    engine_lease,
    fit_traffic,
    log_of_one_engine,
    open_supervisor,
    read_traffic,
)
from objectives.limits import Budget
from objectives.measurement import Measurement, measure
from objectives.samples import RequestSamples
from storage.codec import plain


def replay_once(settings: TuneSettings, follower: Follower) -> dict[str, Any]:
    """Start an engine, replay the window once, stop it; return the result as plain JSON values.

    Raises:
        TraceError: a request is longer than the engine allows.
        EnvironmentFault: the engine did not start, or died.
    """
    given = read_traffic(settings)
    for sentence in given.trace.notes.sentences():
        follower.say(sentence)
    name = "replay"
    log = log_of_one_engine(settings, name)
    with ExitStack() as stack:
        end_earlier_runs(follower.say)
        supervisor = stack.enter_context(open_supervisor(settings, name))
        described = describe_engine(settings, supervisor).info
        stack.enter_context(engine_lease(supervisor, described))
        traffic = fit_traffic(given, settings, described.max_model_len)
        for sentence in traffic.trace.notes.since(given.trace.notes):
            follower.say(sentence)
        engine_args = {**settings.engine_args, "model": described.model}
        plan = ReplayPlan(
            seed=settings.seed,
            salt="replay",
            warmup_requests=warmup_requests(traffic.trace, settings.warmup_s),
            first_warmup_requests=first_warmup_requests(traffic.trace, settings.warmup_s),
        )
        try:
            follower.say("starting an engine")
            started = supervisor.start(engine_args, log)
            replayed = supervisor.replay(traffic.trace, plan, follower.progress)
        except TrialFailed as outcome:
            raise EnvironmentFault(str(outcome), hint=f"the engine's log is {log}") from outcome
        # What was measured counts even if the engine will not go quietly.
        with suppress(TrialFailed):
            supervisor.stop()
    budget = Budget(traffic.budget.absolute)
    measurement = measure(replayed.samples, classes=traffic.classes, budget=budget)
    late = client_bound(measurement, budget)
    if late is not None:
        follower.say(f"{late.failure_class}: {late.evidence}; do not trust these figures")
    result = bench_result(settings, traffic, measurement, replayed, started.info)
    return plain({**result, "start_s": started.start_s}, name="replay")


_BENCH_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


def bench_result(
    settings: TuneSettings,
    traffic: Traffic,
    measurement: Measurement,
    replayed: ReplayResult,
    info: EngineInfo,
) -> dict[str, Any]:
    """Return one replay under the key names of ``vllm bench serve``'s result file.

    Three differences of definition: TTFT and E2E count from the scheduled send time of the
    trace; failed requests weigh as infinitely late; values that do not exist are null, not 0.
    """
    head = bench_head(endpoint_type="in-process", backend="vllm", model=info.model)
    summary, requests = client_figures(
        settings, traffic, measurement, replayed.samples, replayed.errors
    )
    return {
        **head,
        **summary,
        "vllm_version": info.vllm_version,
        "device": info.device,
        "max_num_batched_tokens": info.resolved["max_num_batched_tokens"],
        "max_num_seqs": info.resolved["max_num_seqs"],
        "kv_cache_tokens": info.kv_cache_tokens,
        "gaps_beside_prefill": gaps_beside_prefill(replayed.steps),
        **requests,
    }


def bench_head(*, endpoint_type: str, backend: str, model: str) -> dict[str, Any]:
    """Return what such a file begins with."""
    return {
        "date": f"{datetime.now(UTC):%Y%m%d-%H%M%S}",
        "endpoint_type": endpoint_type,
        "backend": backend,
        "model_id": model,
        "tokenizer_id": model,
    }


def client_figures(
    settings: TuneSettings,
    traffic: Traffic,
    measurement: Measurement,
    samples: RequestSamples,
    errors: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the client measured, wherever the engine is: in figures, and by request."""
    metrics = measurement.metrics
    summary: dict[str, Any] = {
        "num_prompts": measurement.requests,
        "request_rate": "trace",
        "burstiness": None,
        "max_concurrency": None,
        "duration": measurement.window_s,
        "completed": measurement.requests - measurement.failed_requests,
        "failed": measurement.failed_requests,
        "total_input_tokens": int(samples.prompt_tokens[~samples.failed].sum()),
        "total_output_tokens": int(samples.output_tokens[~samples.failed].sum()),
        "request_throughput": metrics["request_throughput"],
        "request_goodput": metrics["goodput"],
        "output_throughput": metrics["output_throughput"],
        "total_token_throughput": metrics["total_token_throughput"],
    }
    for ours, theirs in _BENCH_NAMES.items():
        for aggregate in ("mean", "p50", "p90", "p95", "p99", "max"):
            name = "median" if aggregate == "p50" else aggregate
            summary[f"{name}_{theirs}_ms"] = metrics[f"{ours}_{aggregate}"]
    summary |= {
        "trace": settings.trace,
        "window": settings.window,
        "trace_sha256": traffic.trace.sha256,
        "send_lag_p99_ms": measurement.send_lag_p99_ms,
        "tokens_per_busy_s": metrics["tokens_per_busy_s"],
        "prefix_hit_rate": metrics["prefix_hit_rate"],
    }
    requests = {
        "input_lens": samples.prompt_tokens.tolist(),
        "output_lens": samples.output_tokens.tolist(),
        "start_times": samples.sent_s.tolist(),
        "ttfts": _or_none(samples.first_token_s - samples.scheduled_s),
        "itls": _gaps_of_requests(samples),
        "errors": list(errors),
    }
    return summary, requests


def _gaps_of_requests(samples: RequestSamples) -> list[list[float]]:
    order = np.argsort(samples.gap_request, kind="stable")
    counts = np.bincount(samples.gap_request, minlength=len(samples))
    parts = np.split(samples.gap_s[order], np.cumsum(counts)[:-1])
    return [part.tolist() for part in parts]


def _or_none(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in seconds]
