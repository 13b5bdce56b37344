"""Traffic that comes by turns, and what a scheduler makes of it: vLLM's or the simulated one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

BLOCK_SIZE = 16
COMMON = 64
"""Tokens with which the longer prompts of a family begin alike."""

MOST_TURNS = 5000
SEEDS = range(12)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "watermark": {"watermark": 0.2},
    "reserving a part": {"scheduler_reserve_full_isl": False},
    "threshold": {"long_prefill_token_threshold": 48},
    "priority": {"scheduling_policy": "priority"},
    "priority and a part": {
        "scheduling_policy": "priority",
        "scheduler_reserve_full_isl": False,
        "watermark": 0.15,
    },
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024},
}
LIMITS: Mapping[str, Any] = {
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
    # No multiple of a block, so that the last one of the longest request is half empty.
    "max_model_len": 1000,
    "block_size": BLOCK_SIZE,
}


@dataclass(frozen=True, slots=True)
class Engine:
    """One whose schedules are compared."""

    variant: str
    asynchronous: bool
    caching: bool

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            **LIMITS,
            **VARIANTS[self.variant],
            "enable_prefix_caching": self.caching,
        }


ENGINES = tuple(
    engine
    for engine in (Engine(*each) for each in product(VARIANTS, (False, True), (False, True)))
    # The simulation keeps one of several blocks with the same content.
    if not (engine.variant == "threshold" and engine.caching)
)


class Arrival(NamedTuple):
    turn: int
    prompt: int
    output: int
    priority: int
    family: int

    @property
    def alike(self) -> int:
        """Tokens at the beginning of its prompt that are those of its family."""
        return COMMON if self.prompt > COMMON else 0


def blocks(seed: int) -> int:
    """Return how large a KV cache is: too small for all, sometimes by far."""
    return 40 if seed % 2 else 26


def arrivals(seed: int) -> list[Arrival]:
    random = np.random.default_rng(seed)
    count = 25
    turns = np.cumsum(random.integers(0, 5, count))
    prompts = random.integers(1, 120, count) + np.where(random.random(count) < 0.3, 200, 0)
    outputs = random.integers(1, 40, count)
    priorities, families = random.integers(0, 3, count), random.integers(0, 3, count)
    columns = (turns, prompts, outputs, priorities, families)
    return [Arrival(*row) for row in zip(*(each.tolist() for each in columns), strict=True)]


class Side(Protocol):
    """A scheduler. Requests are numbered by their arrival."""

    @property
    def left(self) -> bool: ...

    def arrive(self, number: int) -> None: ...

    def plan(self) -> Mapping[int, int]:
        """Return the tokens that each computes in the next step, which is begun if there are."""

    def deliver(self) -> None:
        """End the oldest step in flight."""


def play(side: Side, coming: Sequence[Arrival], *, in_flight: int) -> list[dict[int, int]]:
    """Return what is planned in each turn."""
    planned: list[dict[int, int]] = []
    arrived = flying = 0
    while arrived < len(coming) or side.left:
        turn = len(planned)
        while arrived < len(coming) and coming[arrived].turn <= turn:
            side.arrive(arrived)
            arrived += 1
        parts = dict(side.plan())
        planned.append(parts)
        flying += bool(parts)
        if flying == in_flight or (flying and not parts):
            side.deliver()
            flying -= 1
        if turn == MOST_TURNS:
            raise RuntimeError("it goes on for ever")
    return planned
