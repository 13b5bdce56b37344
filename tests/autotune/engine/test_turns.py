"""The simulated scheduler plans as vLLM's own scheduler objects do, without an engine.

With one step in flight and two; by traffic at random, and with a cache that is always too small.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.candidates.live import LIVE_LIMITS
from autotune.engine.protocol import EngineInfo
from autotune.forecast.blocks import new_pool
from autotune.forecast.scheduling import (
    LEFT,
    PREEMPTIONS,
    Scheduler,
    Tokens,
    arrive,
    deliver,
    new_state,
    plan,
)
from autotune.forecast.simulation import Traffic
from autotune.simulated.shape import kv_tokens, shape_of
from autotune.traffic.model import Trace, TraceRequest
from tests.autotune.engine.child import told_by
from tests.autotune.engine.turns import ENGINES, SEEDS, arrivals, blocks, play

pytestmark = pytest.mark.engine

HASHED = 32
"""Tokens that a hash id stands for."""


class Ours:
    """A ``Side`` that is simulated, by what vLLM says of its own."""

    def __init__(self, info: EngineInfo, seed: int) -> None:
        info = replace(info, kv_cache_tokens=kv_tokens(blocks(seed), info))
        self.shape = shape_of(info)
        traffic = Traffic.of(trace_of(seed), self.shape)
        requests = traffic.arrival_s.size
        self.scheduler = Scheduler(
            new_state(requests, in_flight=self.shape.in_flight),
            traffic.load,
            self.shape.rules({name: info.resolved[name] for name in LIVE_LIMITS}),
            new_pool(traffic.keys, requests=requests, blocks=self.shape.kv_blocks),
            traffic.keys,
        )
        ends = traffic.tokens_from
        self._tokens = Tokens(ends[:-1].copy(), np.full(int(ends[-1]), np.nan))
        self._planned = 0
        self._flying: deque[int] = deque()
        self.preemptions = 0

    @property
    def left(self) -> bool:
        return bool(self.scheduler.state.counters[LEFT] > 0)

    def arrive(self, number: int) -> None:
        arrive(self.scheduler, number)

    def plan(self) -> dict[int, int]:
        slot, state = self._planned % self.shape.in_flight, self.scheduler.state
        computed = plan(self.scheduler, slot)
        self.preemptions += int(state.summary[PREEMPTIONS])
        if computed:
            self._flying.append(slot)
            self._planned += 1
        count = int(state.share_count[slot])
        pairs = zip(state.shares[slot][:count], state.parts[slot][:count], strict=True)
        return {int(request): int(tokens) for request, tokens in pairs if tokens}

    def deliver(self) -> None:
        deliver(self.scheduler, self._flying.popleft(), self._tokens, 0.0)


def trace_of(seed: int) -> Trace:
    rows = []
    for number, each in enumerate(arrivals(seed)):
        shared = each.alike // HASHED
        own = range(shared, -(-each.prompt // HASHED))
        ids = (*[each.family] * shared, *(1000 * (number + 1) + place for place in own))
        row = TraceRequest(
            timestamp_ms=float(number),
            input_length=each.prompt,
            output_length=each.output,
            hash_ids=ids,
            priority=each.priority,
        )
        rows.append(row)
    return Trace.build(rows, block_size=HASHED, prefixes_known=True, source="made up")


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = told_by("-m", "tests.autotune.engine.vllm_turns")
    return result


def replayed(told: Mapping[str, Any], seed: int) -> tuple[list[dict[int, int]], Ours]:
    side = Ours(EngineInfo.from_json(told["info"]), seed)
    return play(side, arrivals(seed), in_flight=side.shape.in_flight), side


@pytest.mark.parametrize("number", range(len(ENGINES)), ids=map(str, ENGINES))
def test_every_turn_is_that_of_vllm(theirs: list[dict[str, Any]], number: int) -> None:
    for seed in SEEDS:
        expected = [
            {int(name): tokens for name, tokens in turn.items()}
            for turn in theirs[number]["turns"][seed]
        ]
        planned, side = replayed(theirs[number], seed)
        assert side.shape.kv_blocks == blocks(seed)
        assert (side.shape.in_flight == 2) == ENGINES[number].asynchronous
        assert planned == expected, seed


def test_the_traffic_covers_what_schedules_can_do(theirs: list[dict[str, Any]]) -> None:
    preemptions, hits = Counter[bool](), Counter[bool]()
    for engine, told in zip(ENGINES, theirs, strict=True):
        for seed in SEEDS:
            _, side = replayed(told, seed)
            preemptions[engine.asynchronous] += side.preemptions
            hits[engine.asynchronous] += sum(map(int, side.scheduler.state.hits))
            assert list(side.scheduler.state.generated) == [e.output for e in arrivals(seed)]
    assert min(preemptions[False], preemptions[True]) > 100
    assert min(hits[False], hits[True]) > 1000
