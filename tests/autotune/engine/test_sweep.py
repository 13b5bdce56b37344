from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.engine.sweep import Sweep
from autotune.forecast.grid import DECODE_PROMPT, DECODE_STEPS, ContextProbe, KvProbe, SweepPlan
from objectives.steps import COLUMNS, Steps

LIMITS = {TOKENS: 2048, SEQS: 64, THRESHOLD: 100}
PLAN = SweepPlan(
    coarse=(64, 512),
    decodes=(4, 2, 1),
    contexts=(ContextProbe(chunk_tokens=256, prompt_tokens=1024),),
    kv=(KvProbe(requests=3, context_tokens=1024),),
    fine=(128, 129),
)


@dataclass
class Requests:
    """An engine that writes down what it was asked, and computes one step a request.

    Attributes:
        asked: (prompt, output tokens) of each request, and at what count of requests at work.
        prompts: of each request.
        paces: each with ``held`` and ``one_in_flight``.
        fails_at: the request that is not answered.
    """

    fails_at: int | None = None
    asked: list[tuple[int, int, bool]] = field(default_factory=list)
    prompts: list[Sequence[int]] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    paces: list[tuple[bool, bool]] = field(default_factory=list)
    limits: list[Mapping[str, int]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    rows: int = 0

    async def generate(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        *,
        request_id: str,
        salt: str,
        priority: int,
    ) -> AsyncIterator[int]:
        if len(self.asked) == self.fails_at:
            raise RuntimeError("the engine is dead")
        assert priority == 0
        held, _ = self.paces[-1]
        self.asked.append((len(prompt), output_tokens, held))
        self.prompts.append(prompt)
        self.names.append((request_id, salt))
        self.rows += 1
        for number in range(output_tokens):
            await asyncio.sleep(0)
            yield number

    async def set_limits(self, limits: Mapping[str, int]) -> Mapping[str, int]:
        self.limits.append(limits)
        return limits

    async def pace(self, *, held: bool = False, one_in_flight: bool = False) -> None:
        self.paces.append((held, one_in_flight))

    async def take_steps(self, *, started_at: float) -> tuple[Steps, Any]:
        rows, self.rows = self.rows, 0
        self.taken.append(rows)
        return Steps.from_rows(np.full((rows, len(COLUMNS)), started_at)), None


def swept(
    engine: Requests, *, seconds: float = 100.0, clock: Iterator[float] | None = None
) -> tuple[Steps, bool, list[tuple[int, int]]]:
    """Run the plan; every look at the clock takes a second."""
    seen: list[tuple[int, int]] = []
    ticks = map(float, count(5)) if clock is None else clock
    sweep = Sweep(
        engine,
        PLAN,
        limits=LIMITS,
        vocab_size=500,
        seconds=seconds,
        progress=lambda done, total: seen.append((done, total)),
        clock=lambda: next(ticks),
    )
    steps, whole = asyncio.run(sweep.run())
    return steps, whole, seen


def test_a_plan_is_run_in_its_order() -> None:
    engine = Requests()
    steps, whole, seen = swept(engine)
    ladder = [
        (DECODE_PROMPT, 3 * DECODE_STEPS + 1, True),
        (DECODE_PROMPT, 2 * DECODE_STEPS + 1, True),
        *[(DECODE_PROMPT, DECODE_STEPS + 1, True)] * 2,
    ]
    assert engine.asked == [
        (64, 1, False),  # the first step of an engine, which says nothing
        (64, 1, False),
        (512, 1, False),
        *ladder,
        (1024, 1, False),
        # Two of the prompts are computed in the first step, the third in the second.
        *[(1024, DECODE_STEPS + 2, True)] * 2,
        (1024, DECODE_STEPS + 1, True),
        (128, 1, False),
        (129, 1, False),
    ]
    assert whole
    assert seen == [(done, 7) for done in range(1, 8)]
    assert len(steps) == len(engine.asked) - 1
    assert set(steps.begun_s) == {5.0}


def test_nothing_is_found_in_the_prefix_cache() -> None:
    engine = Requests()
    swept(engine)
    assert len({salt for _, salt in engine.names}) == len(engine.asked)
    assert len({tuple(prompt[:16]) for prompt in engine.prompts}) == len(engine.asked)
    assert all(0 <= token < 500 for prompt in engine.prompts for token in prompt)


def test_batches_start_together_with_one_step_in_flight() -> None:
    engine = Requests()
    swept(engine)
    together = [(True, True), (False, True)]
    assert engine.paces == [(False, True), *together, *together, (False, False)]


def test_prompts_are_whole_but_in_context_probes_and_limits_are_given_back() -> None:
    engine = Requests()
    swept(engine)
    whole = {**LIMITS, THRESHOLD: 0}
    assert engine.limits == [whole, {**whole, TOKENS: 256}, whole, LIMITS]


def test_what_was_measured_in_time_is_kept() -> None:
    engine = Requests()
    steps, whole, seen = swept(engine, seconds=2.0)
    assert not whole
    assert seen == [(1, 7), (2, 7)]
    assert len(steps) == 2
    assert engine.paces[-1] == (False, False)


@pytest.mark.parametrize("number", [0, 2, 5, 7, 9])
def test_an_engine_that_dies_is_not_left_waiting(number: int) -> None:
    """Alone, in a batch that is held, and in a probe with other limits."""
    engine = Requests(fails_at=number)
    with pytest.raises((RuntimeError, ExceptionGroup)):
        swept(engine)
    assert engine.paces[-1] == (False, False)
    assert engine.limits[-1] == LIMITS
