"""A replay over HTTP against an endpoint, and what it says under bench's names."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from autotune.endpoint_settings import EndpointSettings
from autotune.engine.endpoint import (
    EndpointRefuses,
    EndpointSource,
    error_of,
    open_endpoint,
)
from autotune.engine.endpoint_text import VOCABULARY
from autotune.engine.protocol import PROGRESS_EVERY_S
from autotune.errors import EnvironmentFault
from autotune.settings import TuneSettings
from autotune.study.replays import client_bound, warmup_requests
from autotune.study.session import Follower, Traffic, fit_traffic, read_traffic
from autotune.study.single import bench_head, client_figures
from autotune.traffic.model import Trace
from autotune.traffic.prompts import prompt_token_ids
from autotune.traffic.replay import PreparedRequest, Progress, Replay
from objectives.limits import Budget
from objectives.measurement import measure
from objectives.samples import RequestSamples
from storage.codec import plain

ORDINARY_IDS = range(1000, 4000)
"""Token ids for servers that do not say how many they have: below are the bytes and control
tokens of some vocabularies, and every vocabulary in use reaches to the end."""

_ERRORS_KEPT = 5
NO_LIMIT = 2**31 - 1
"""Where a server does not say how long a request may be."""


@dataclass(frozen=True, slots=True, eq=False)
class EndpointReplay:
    """What came out of one replay over HTTP.

    Attributes:
        samples: what the client saw; where lengths were not forced, with the lengths that
            prompts and answers had by the server's count.
        forced: whether lengths were.
        exact: whether all tokens were counted by the server, and came as counted here.
        cached_known: whether the server said what its prefix cache had.
        errors: of single requests, the first few.
    """

    samples: RequestSamples
    forced: bool
    exact: bool
    cached_known: bool
    errors: tuple[str, ...]

    @property
    def usage(self) -> str:
        return "exact" if self.exact else "estimated"

    @property
    def lengths(self) -> str:
        return "forced" if self.forced else "not forced"


def replay_endpoint(
    settings: TuneSettings, name: str, endpoint: EndpointSettings, follower: Follower
) -> dict[str, Any]:
    """Replay the window once against an endpoint; return the result as plain JSON values.

    Raises:
        UsageError: key, path or model of the endpoint is wrong.
        EnvironmentFault: nobody answers, or every request failed.
        TraceError: a request is longer than the server allows.
    """
    return asyncio.run(_replay_endpoint(settings, name, endpoint, follower))


async def _replay_endpoint(
    settings: TuneSettings, name: str, endpoint: EndpointSettings, follower: Follower
) -> dict[str, Any]:
    given = read_traffic(settings)
    for sentence in given.trace.notes.sentences():
        follower.say(sentence)
    async with open_endpoint(name, endpoint) as source:
        traffic, replayed = await replay_fitted(source, given, settings, "replay", follower)
    return plain(_result(settings, traffic, source, replayed, follower), name="replay")


def _result(
    settings: TuneSettings,
    traffic: Traffic,
    source: EndpointSource,
    replayed: EndpointReplay,
    follower: Follower,
) -> dict[str, Any]:
    budget = Budget(traffic.budget.absolute)
    measurement = measure(replayed.samples, classes=traffic.classes, budget=budget)
    late = client_bound(measurement, budget)
    if late is not None:
        follower.say(f"{late.failure_class}: {late.evidence}; do not trust these figures")
    for sentence in failures_of(source):
        follower.say(sentence)
    if not replayed.forced:
        follower.say("lengths not forced: answers end where the model ends them")
    endpoint = source.endpoint.settings
    head = bench_head(endpoint_type="openai", backend=source.served.kind, model=endpoint.model)
    summary, requests = client_figures(
        settings, traffic, measurement, replayed.samples, replayed.errors
    )
    if not replayed.cached_known:
        # What was computed is not known without it.
        summary |= {"tokens_per_busy_s": None, "prefix_hit_rate": None}
    return {
        **head,
        **summary,
        "base_url": endpoint.base_url,
        "usage": replayed.usage,
        "lengths": replayed.lengths,
        **requests,
    }


async def replay_fitted(
    source: EndpointSource, given: Traffic, settings: TuneSettings, name: str, follower: Follower
) -> tuple[Traffic, EndpointReplay]:
    """Fit traffic to what a server allows, and replay it once.

    ``name`` begins the salt, which no other replay has.

    Raises:
        TraceError: a request is longer than that.
    """
    traffic = fit_traffic(given, settings, source.served.max_model_len or NO_LIMIT)
    for sentence in traffic.trace.notes.since(given.trace.notes):
        follower.say(sentence)
    replayed = await replay_once_over_http(
        source,
        traffic.trace,
        seed=settings.seed,
        salt=f"{name}-{time.time_ns():x}",
        warmup=warmup_requests(traffic.trace, settings.warmup_s),
        follower=follower,
    )
    return traffic, replayed


async def replay_once_over_http(
    source: EndpointSource,
    trace: Trace,
    *,
    seed: int,
    salt: str,
    warmup: int,
    follower: Follower,
) -> EndpointReplay:
    """Replay the first ``warmup`` requests, then all of them, and return what came of those.

    ``salt`` must differ from that of any other replay against the same server.

    Raises:
        UsageError: the server refuses what every request asks for.
        EnvironmentFault: every request failed.
    """
    name = source.endpoint.name
    prepared = prepare(trace, seed=seed, ids=ORDINARY_IDS if source.forced else VOCABULARY)
    try:
        if warmup:
            first = prepared[:warmup]
            samples, _ = await _pass("warmup", first, source, f"{salt}-warmup", follower)
            _check_any(samples, source)
        source.faults.clear()
        samples, progress = await _pass("replay", prepared, source, salt, follower)
    except BaseExceptionGroup as group:
        refusals, others = group.split(EndpointRefuses)
        if refusals is None or others is not None:
            raise
        raise error_of(_first(refusals).fault, name) from None
    _check_any(samples, source)
    return _as_counted(samples, source, salt, progress)


def failures_of(source: EndpointSource) -> list[str]:
    """Return the causes of single requests that failed, the most frequent ones, in sentences."""
    causes = Counter(fault.message for fault in source.faults).most_common(_ERRORS_KEPT)
    return [f"failed: {count} of the requests: {message}" for message, count in causes]


def prepare(trace: Trace, *, seed: int, ids: range) -> list[PreparedRequest]:
    """Return the requests of a trace with prompts of these token ids."""
    return [
        PreparedRequest(
            scheduled_s=request.timestamp_ms / 1000,
            prompt=prompt_token_ids(
                request.hash_ids,
                request.input_length,
                block_size=trace.meta.block_size,
                seed=seed,
                vocab_size=ids.stop,
                first_id=ids.start,
            ).tolist(),
            output_tokens=request.output_length,
            priority=request.priority or 0,
        )
        for request in trace.requests
    ]


async def _pass(
    stage: str,
    prepared: Sequence[PreparedRequest],
    source: EndpointSource,
    salt: str,
    follower: Follower,
) -> tuple[RequestSamples, Progress]:
    # The source itself knows which answers are too short.
    replay = Replay(prepared, source, salt=salt, forced=False)
    reporter = asyncio.create_task(_report(stage, replay.progress, follower))
    try:
        return await replay.run(), replay.progress
    finally:
        reporter.cancel()
        with suppress(asyncio.CancelledError):
            await reporter


async def _report(stage: str, progress: Progress, follower: Follower) -> None:
    while True:
        follower.progress(
            {
                "stage": stage,
                "total": progress.total,
                "sent": progress.sent,
                "done": progress.done,
                "tokens": progress.tokens,
            }
        )
        await asyncio.sleep(PROGRESS_EVERY_S)


def _first(refusals: BaseExceptionGroup[EndpointRefuses]) -> EndpointRefuses:
    first = refusals.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _check_any(samples: RequestSamples, source: EndpointSource) -> None:
    """Raise where every request failed, with the cause of the first."""
    if not samples.lost.all():
        return
    fault = source.faults[0]
    raise EnvironmentFault(
        f"endpoint {source.endpoint.name}: all of {len(samples)} requests failed: {fault.message}",
        hint=fault.hint,
    )


def _as_counted(
    samples: RequestSamples, source: EndpointSource, salt: str, progress: Progress
) -> EndpointReplay:
    """Put the server's counts in the place of ours."""
    received = [source.received.get(f"{salt}-{row}") for row in range(len(samples))]
    output = samples.output_tokens.copy()
    expected = samples.expected_output_tokens.copy()
    prompt = samples.prompt_tokens.copy()
    for row, each in enumerate(received):
        if each is None:
            continue
        if source.forced:
            # All of them came, or the source would not have it among what it received.
            output[row] = max(each.output_tokens, expected[row])
        else:
            output[row] = expected[row] = each.output_tokens
            prompt[row] = prompt[row] if each.prompt_tokens is None else each.prompt_tokens
    answered = [each for each in received if each is not None]
    return EndpointReplay(
        samples=replace(
            samples,
            output_tokens=output,
            expected_output_tokens=expected,
            prompt_tokens=prompt,
        ),
        forced=source.forced,
        exact=all(each.exact for each in answered),
        cached_known=all(each.cached_tokens is not None for each in answered),
        errors=tuple(progress.errors[:_ERRORS_KEPT]),
    )
