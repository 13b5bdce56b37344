"""What an engine would do with a trace: its scheduler, step by step, on a clock of its own.

Discrete events. A step is planned when there is room for one more in flight, begins when the one
before it is done and the host has prepared it, and takes what the step times say. Nothing is
random, nothing waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from autotune.candidates.lattice import SEQS, TOKENS, integer
from autotune.candidates.live import THRESHOLD
from autotune.forecast.blocks import Keys, block_keys, new_pool
from autotune.forecast.compiled import compiled, numbers
from autotune.forecast.scheduling import (
    ADMITTED,
    ADMITTED_AFTER,
    CONTEXT_TOKENS,
    DECODE_KV_TOKENS,
    DECODES,
    FREE_AFTER,
    LEFT,
    PAIRS,
    PREEMPTIONS,
    PREFILL_TOKENS,
    QUEUED,
    QUEUED_AFTER,
    SHARES,
    WIDTH,
    Load,
    Rules,
    Scheduler,
    State,
    Tokens,
    arrive,
    deliver,
    new_state,
    plan,
)
from autotune.traffic.model import Trace
from objectives.arrays import F8, I8
from objectives.samples import RequestSamples
from objectives.steps import Steps

STEADY: F8 = np.ones(1)
"""No jitter."""

_FIRST_STEPS = 4096


class Times(NamedTuple):
    """What steps take, in seconds; see ``autotune.forecast.step_times.StepTimes``.

    ``jitter`` has factors of the times of single steps, in turn and over again.
    """

    decode_s: F8
    mixed_s: F8
    kv_token_s: float
    pair_s: float
    request_s: float
    host_s: float
    host_request_s: float
    between_s: float
    between_request_s: float
    jitter: F8


class Timed(Protocol):
    """What is needed of a step-time model."""

    @property
    def decode_s(self) -> F8: ...

    @property
    def mixed_s(self) -> F8: ...

    @property
    def kv_token_s(self) -> float: ...

    @property
    def pair_s(self) -> float: ...

    @property
    def request_s(self) -> float: ...

    @property
    def host_s(self) -> float: ...

    @property
    def host_request_s(self) -> float: ...

    @property
    def between_s(self) -> float: ...

    @property
    def between_request_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What a scheduler goes by, beside its two limits and the long-prefill threshold.

    Attributes:
        kv_blocks: of the cache, the one that vLLM keeps for itself included.
        block_size: tokens of each.
        caching: whether prefixes are looked for.
        in_flight: steps that are planned at once: 2 with async scheduling, else 1.
        priority: whether requests go by their priority.
        watermark: share of the blocks that stays free on admission.
        whole_prompt: whether a prompt is admitted only if all of it fits.
        chunked: whether a prompt may be computed in parts.
        threshold_alone: whether the long-prefill threshold holds for a request that is alone.
        delivery_s: from the end of a step until the client has its tokens.
    """

    kv_blocks: int
    block_size: int = 16
    caching: bool = False
    in_flight: int = 1
    priority: bool = False
    watermark: float = 0.0
    whole_prompt: bool = True
    chunked: bool = True
    threshold_alone: bool = False
    delivery_s: float = 0.0

    def rules(self, candidate: Mapping[str, Any]) -> Rules:
        """Return the rules of an engine of this shape with a candidate's limits."""
        return Rules(
            tokens=integer(candidate[TOKENS]),
            seqs=integer(candidate[SEQS]),
            threshold=integer(candidate.get(THRESHOLD) or 0),
            threshold_alone=int(self.threshold_alone),
            block_size=self.block_size,
            blocks=self.kv_blocks - 1,
            watermark=int(self.watermark * self.kv_blocks),
            whole_prompt=int(self.whole_prompt),
            chunked=int(self.chunked),
            by_rank=int(self.priority),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """A trace in the form that the inner loop needs; the same for all candidates.

    Attributes:
        arrival_s: [requests], ascending.
        load: lengths and ranks.
        keys: of their blocks.
        tokens_from: [requests + 1], where each request's tokens of output begin.
    """

    arrival_s: F8
    load: Load
    keys: Keys
    tokens_from: I8

    @classmethod
    def of(cls, trace: Trace, shape: EngineShape) -> Traffic:
        priorities = [request.priority or 0 for request in trace.requests]
        ranks = priorities if shape.priority else [0] * len(priorities)
        # Copies: what is compiled takes no arrays that are read-only.
        load = Load(np.array(trace.input_lengths), np.array(trace.output_lengths), np.array(ranks))
        keys = block_keys(trace, block_size=shape.block_size, caching=shape.caching)
        ends = np.concatenate([[0], np.cumsum(load.output)])
        return cls(np.array(trace.timestamps_s), load, keys, ends)


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """What came of a simulation.

    Attributes:
        samples: as a client would have seen them; a request that can never run has failed.
        steps: of the engine.
    """

    samples: RequestSamples
    steps: Steps


def simulate(
    traffic: Traffic,
    times: Timed,
    shape: EngineShape,
    candidate: Mapping[str, Any],
    *,
    jitter: F8 = STEADY,
) -> Simulated:
    """Replay traffic on a simulated engine with a candidate's limits.

    Args:
        traffic: made for an engine of this ``shape``.
        times: whose tables reach as far as the candidate's limits.
        shape: of the engine.
        candidate: the limits.
        jitter: factors of the times of single steps, in turn and over again.
    """
    first, key, different = traffic.keys
    scheduler = Scheduler(
        new_state(traffic.arrival_s.size, in_flight=shape.in_flight),
        Load(*map(numbers, traffic.load)),
        shape.rules(candidate),
        new_pool(traffic.keys, requests=traffic.arrival_s.size, blocks=shape.kv_blocks),
        Keys(numbers(first), numbers(key), different),
    )
    tokens = Tokens(
        numbers(traffic.tokens_from[:-1].copy()),
        numbers(np.full(int(traffic.tokens_from[-1]), np.nan)),
    )
    stamps, summaries = _run(
        scheduler,
        numbers(traffic.arrival_s),
        tokens,
        _times(times, candidate, jitter),
        shape.in_flight,
    )
    return Simulated(
        _samples(traffic, scheduler.state, np.asarray(tokens.at_s), delivery_s=shape.delivery_s),
        _steps(stamps, summaries, shape.kv_blocks),
    )


def _times(times: Timed, candidate: Mapping[str, Any], jitter: F8) -> Times:
    seqs, tokens = integer(candidate[SEQS]), integer(candidate[TOKENS])
    return Times(
        _reaching(times.decode_s, seqs),
        _reaching(times.mixed_s, tokens),
        times.kv_token_s,
        times.pair_s,
        times.request_s,
        times.host_s,
        times.host_request_s,
        times.between_s,
        times.between_request_s,
        jitter,
    )


def _reaching(table: F8, last: int) -> F8:
    """Return a table that goes on as it did over the last doubling."""
    size = table.size - 1
    if size >= last:
        return table
    slope = (table[-1] - table[size // 2]) / (size - size // 2)
    beyond = table[-1] + slope * np.arange(1, last - size + 1)
    return np.concatenate([table, beyond])


@compiled
def step_s(times: Times, summary: I8) -> float:
    """Return what a step takes that is planned when nothing else runs."""
    prefill, decodes = summary[PREFILL_TOKENS], summary[DECODES]
    context_s = times.kv_token_s * summary[DECODE_KV_TOKENS]
    if prefill == 0:
        return float(times.decode_s[decodes] + context_s)
    base_s = times.mixed_s[prefill + decodes] + times.request_s * summary[SHARES]
    return float(base_s + context_s + times.pair_s * summary[PAIRS])


@compiled
def _run(
    scheduler: Scheduler,
    arrival_s: F8,
    tokens: Tokens,
    times: Times,
    in_flight: int,
) -> tuple[F8, I8]:
    """Run until every request has ended.

    Returns:
        When each step was planned and done, [steps, 2], and its summary, [steps, WIDTH].
    """
    stamps = np.zeros((_FIRST_STEPS, 2))
    summaries = np.zeros((_FIRST_STEPS, WIDTH), dtype=np.int64)
    state = scheduler.state
    steps = flying = arrived = 0
    now_s = free_s = 0.0
    while state.counters[LEFT] > 0:
        while arrived < len(arrival_s) and arrival_s[arrived] <= now_s:
            arrive(scheduler, arrived)
            arrived += 1
        if flying < in_flight and state.counters[ADMITTED] + state.counters[QUEUED] > 0:
            computed = plan(scheduler, steps % in_flight)
            if computed > 0:
                if steps == stamps.shape[0]:
                    stamps = np.concatenate((stamps, np.zeros_like(stamps)))
                    summaries = np.concatenate((summaries, np.zeros_like(summaries)))
                takes_s = step_s(times, state.summary) * times.jitter[steps % times.jitter.size]
                host_s = times.host_s + times.host_request_s * state.summary[SHARES]
                host_s = min(host_s, takes_s)
                free_s = max(free_s, now_s + host_s) + takes_s - host_s
                stamps[steps, 0], stamps[steps, 1] = now_s, free_s
                summaries[steps] = state.summary
                steps += 1
                flying += 1
                continue
            if flying == 0 and state.summary[PREEMPTIONS] > 0:
                continue  # Who found no room has made it for others.
        if flying > 0:
            oldest = steps - flying
            now_s = max(now_s, stamps[oldest, 1])
            deliver(scheduler, oldest % in_flight, tokens, now_s)
            flying -= 1
            if in_flight == 1:
                # With two the next step runs meanwhile.
                requests = summaries[oldest, SHARES]
                now_s += times.between_s + times.between_request_s * requests
        elif arrived < len(arrival_s):
            now_s = max(now_s, arrival_s[arrived])
        else:
            break  # The last that came was refused.
    return stamps[:steps], summaries[:steps]


def _samples(traffic: Traffic, state: State, at_s: F8, *, delivery_s: float) -> RequestSamples:
    begin, end = traffic.tokens_from[:-1], traffic.tokens_from[1:]
    generated = np.array(state.generated)
    some = generated > 0
    received = begin + np.maximum(generated, 1) - 1
    gaps = np.diff(at_s)
    within = np.isfinite(gaps)
    within[end[:-1] - 1] = False  # From the last token of one to the first of the next.
    return RequestSamples(
        scheduled_s=traffic.arrival_s,
        sent_s=traffic.arrival_s,
        first_token_s=np.where(some, at_s[begin] + delivery_s, np.nan),
        last_token_s=np.where(some, at_s[received] + delivery_s, np.nan),
        prompt_tokens=traffic.load.prompt,
        output_tokens=generated,
        expected_output_tokens=traffic.load.output,
        cached_tokens=np.maximum(np.array(state.hits), 0),
        failed=generated != traffic.load.output,
        gap_s=gaps[within],
        gap_request=np.repeat(np.arange(begin.size), np.maximum(generated - 1, 0)),
    )


def _steps(stamps: F8, summaries: I8, kv_blocks: int) -> Steps:
    def column(number: int) -> I8:
        return summaries[:, number].copy()

    return Steps(
        begun_s=stamps[:, 0].copy(),
        planned_s=stamps[:, 0].copy(),
        done_s=stamps[:, 1].copy(),
        prefill_tokens=column(PREFILL_TOKENS),
        decode_requests=column(DECODES),
        requests=column(SHARES),
        running=column(ADMITTED_AFTER),
        waiting=column(QUEUED_AFTER),
        kv_usage=1 - column(FREE_AFTER) / (kv_blocks - 1),
        preemptions=column(PREEMPTIONS),
        context_tokens=column(CONTEXT_TOKENS),
        decode_kv_tokens=column(DECODE_KV_TOKENS),
        prefill_pairs=column(PAIRS),
    )
