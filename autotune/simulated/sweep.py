"""The steps of a calibration sweep on a simulated engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np

from autotune.candidates.lattice import TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.forecast.blocks import Keys
from autotune.forecast.grid import SweepPlan
from autotune.forecast.scheduling import Load
from autotune.forecast.simulation import EngineShape, Timed, Traffic, simulate
from objectives.steps import Steps

_APART_S = 1e4
"""Between two parts of a sweep, so that none meets the one before it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Requests that start together: prompt and output length of each, and the step budget."""

    requests: Sequence[tuple[int, int]]
    tokens: int


def sweep_steps(
    plan: SweepPlan, times: Timed, shape: EngineShape, limits: Mapping[str, int]
) -> Steps:
    """Return the steps of a whole sweep, one in flight, one right after the other.

    Args:
        plan: what is measured.
        times: of the steps.
        shape: of the engine.
        limits: ``LIVE_LIMITS`` of the engine.
    """
    alone = replace(shape, in_flight=1, caching=False, priority=False)
    parts = _parts(plan, limits[TOKENS])
    edges = [0, *(n for n in range(1, len(parts)) if _budget_changes(parts, n)), len(parts)]
    found = [
        simulate(
            _traffic(parts[begin:end]),
            times,
            alone,
            {**limits, TOKENS: parts[begin].tokens, THRESHOLD: 0},
        ).steps
        for begin, end in pairwise(edges)
    ]
    names = [field.name for field in fields(Steps)]
    return Steps(
        **{name: np.concatenate([getattr(each, name) for each in found]) for name in names}
    )


def _budget_changes(parts: Sequence[_Part], number: int) -> bool:
    return parts[number].tokens != parts[number - 1].tokens


def _parts(plan: SweepPlan, tokens: int) -> list[_Part]:
    """Return the parts in the order of ``autotune.engine.sweep.Sweep.run``."""
    return [
        *(_Part([(size, 1)], tokens) for size in plan.coarse),
        *([_Part(plan.ladder_traffic(), tokens)] if plan.decodes else []),
        *(_Part([(each.prompt_tokens, 1)], each.chunk_tokens) for each in plan.contexts),
        *(_Part(each.traffic(tokens), tokens) for each in plan.kv),
        *(_Part([(size, 1)], tokens) for size in plan.fine),
    ]


def _traffic(parts: Sequence[_Part]) -> Traffic:
    requests = [each for part in parts for each in part.requests]
    counts = [len(part.requests) for part in parts]
    prompt, output = np.array(requests, dtype=np.int64).T
    nobody = np.zeros(len(requests), dtype=np.int64)
    return Traffic(
        arrival_s=np.repeat(np.arange(len(parts)) * _APART_S, counts),
        load=Load(prompt.copy(), output.copy(), nobody),
        keys=Keys(np.zeros(len(requests) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64), 0),
        tokens_from=np.concatenate([[0], np.cumsum(output)]),
    )
