"""Runs a calibration sweep on a started engine: single steps of known work, one in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from autotune.candidates.lattice import TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.forecast.grid import ContextProbe, SweepPlan
from objectives.steps import Steps

_SEED = 0
_TELL_EVERY_S = 1.0


class SweptEngine(Protocol):
    """What a sweep needs of an engine; see ``autotune.engine.vllm_engine``."""

    def generate(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        *,
        request_id: str,
        salt: str,
        priority: int,
    ) -> AsyncIterator[int]: ...

    async def set_limits(self, limits: Mapping[str, int]) -> Mapping[str, int]: ...

    async def pace(self, *, held: bool = False, one_in_flight: bool = False) -> None: ...

    async def take_steps(self, *, started_at: float) -> tuple[Steps, Any]: ...


class Sweep:
    """One run of a plan.

    Every prompt is of random tokens under a salt of its own, so that the prefix cache has
    nothing of it. With one step in flight the stamps of a step hold its whole time and nothing
    of its neighbours, which asynchronous scheduling would blur.

    Args:
        engine: idle, and left idle.
        plan: what to measure, the most telling first.
        limits: ``LIVE_LIMITS`` as the engine was started with.
        vocab_size: of its model.
        seconds: after which no further part is begun.
        progress: told how many parts of how many are done.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        engine: SweptEngine,
        plan: SweepPlan,
        *,
        limits: Mapping[str, int],
        vocab_size: int,
        seconds: float,
        progress: Callable[[int, int], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._given = dict(limits)
        # A threshold would have every longer prompt computed in parts.
        self._limits = {**limits, THRESHOLD: 0}
        self._random = np.random.default_rng(_SEED)
        self._vocab_size = vocab_size
        self._seconds = seconds
        self._progress = progress
        self._clock = clock
        self._sent = 0
        self._done, self._parts, self._told_at = 0, 0, time.monotonic()

    async def run(self) -> tuple[Steps, bool]:
        """Return the steps, and whether there was time for all of the plan."""
        plan, began = self._plan, self._clock()
        parts: list[Callable[[], Any]] = [
            *(lambda size=size: self._prefill(size) for size in plan.coarse),
            *([lambda: self._together(plan.ladder_traffic())] if plan.decodes else []),
            *(lambda probe=probe: self._context(probe) for probe in plan.contexts),
            *(
                lambda probe=probe: self._together(probe.traffic(self._limits[TOKENS]))
                for probe in plan.kv
            ),
            *(lambda size=size: self._prefill(size) for size in plan.fine),
        ]
        await self._engine.take_steps(started_at=0.0)
        await self._engine.pace(one_in_flight=True)
        self._parts = len(parts)
        try:
            await self._engine.set_limits(self._limits)
            # The first step of an engine is slow, and says nothing.
            await self._prefill(plan.coarse[0])
            await self._engine.take_steps(started_at=0.0)
            for part in parts:
                if self._clock() - began > self._seconds:
                    break
                await part()
                self._done += 1
                self._tell()
        finally:
            await self._engine.pace()
            await self._engine.set_limits(self._given)
        steps, _ = await self._engine.take_steps(started_at=began)
        return steps, self._done == self._parts

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        self._progress(self._done, self._parts)

    async def _prefill(self, tokens: int) -> None:
        """One step of this many tokens, the whole of a prompt."""
        await self._generate(tokens, 1)

    async def _context(self, probe: ContextProbe) -> None:
        """One long prompt in chunks, each of which sees a longer context."""
        await self._engine.set_limits({**self._limits, TOKENS: probe.chunk_tokens})
        try:
            await self._generate(probe.prompt_tokens, 1)
        finally:
            await self._engine.set_limits(self._limits)

    async def _together(self, requests: Sequence[tuple[int, int]]) -> None:
        """Have requests of these prompt and output lengths start in the same step."""
        await self._engine.pace(held=True, one_in_flight=True)
        async with asyncio.TaskGroup() as group:
            for prompt, outputs in requests:
                group.create_task(self._generate(prompt, outputs))
            # Each task hands its request over before it first waits.
            await asyncio.sleep(0)
            await self._engine.pace(one_in_flight=True)

    async def _generate(self, prompt_tokens: int, output_tokens: int) -> None:
        self._sent += 1
        prompt = self._random.integers(0, self._vocab_size, prompt_tokens).tolist()
        name = f"sweep-{self._sent}"
        stream = self._engine.generate(
            prompt, output_tokens, request_id=name, salt=name, priority=0
        )
        async for _ in stream:
            # A part may take long; that tokens come is a sign of life.
            if time.monotonic() - self._told_at > _TELL_EVERY_S:
                self._tell()
