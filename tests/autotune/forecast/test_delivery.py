from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.forecast.delivery import delivery_s
from autotune.forecast.simulation import EngineShape, Simulated, Traffic, simulate
from autotune.traffic.model import Trace, TraceRequest
from objectives.steps import COLUMNS, Steps
from tests.autotune.forecast.clock import a_second_each

LIMITS = {TOKENS: 16, SEQS: 8, THRESHOLD: 0}
NO_STEPS = Steps.from_rows(np.empty((0, len(COLUMNS))))


def replay(*, late_s: float, limits: dict[str, int] | None = None, **shape: Any) -> Simulated:
    """Simulate thirty prompts of many lengths on an engine whose steps take a second."""
    random = np.random.default_rng(5)
    lengths = random.integers(1, 40, 30).tolist()
    # Whoever comes later is more urgent, where that counts.
    requests = [
        TraceRequest(
            timestamp_ms=2500.0 * number,
            input_length=length,
            output_length=3,
            hash_ids=tuple(range(100, 100 + -(-length // 4))),
            priority=-number,
        )
        for number, length in enumerate(lengths)
    ]
    trace = Trace.build(requests, block_size=4, prefixes_known=True, source="made up")
    engine = EngineShape(**{"kv_blocks": 200, "block_size": 4, "delivery_s": late_s, **shape})
    return simulate(Traffic.of(trace, engine), a_second_each(), engine, limits or LIMITS)


@pytest.mark.parametrize("late_s", [0.0, 0.25, 3.5, 17.0])
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("caching", [False, True])
def test_it_is_found_however_many_steps_end_meanwhile(
    late_s: float, in_flight: int, caching: bool
) -> None:
    done = replay(late_s=late_s, in_flight=in_flight, caching=caching)
    assert (done.samples.cached_tokens.sum() > 0) == caching
    assert delivery_s(done.steps, done.samples) == pytest.approx(late_s)


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_blocks": 14, "whole_prompt": False},
        {"priority": True},
        {"limits": {**LIMITS, THRESHOLD: 4}},
    ],
)
def test_where_prompts_do_not_end_in_turn_it_is_at_most_that(changes: dict[str, Any]) -> None:
    done = replay(late_s=0.5, **changes)
    assert delivery_s(done.steps, done.samples) == pytest.approx(0.5)
    later = replay(late_s=5.5, **changes)
    assert 0 < delivery_s(later.steps, later.samples) <= 5.5


def test_requests_without_a_token_do_not_count() -> None:
    done = replay(late_s=0.25)
    first_s, last_s = done.samples.first_token_s.copy(), done.samples.last_token_s.copy()
    first_s[3] = last_s[3] = np.nan
    some = replace(done.samples, first_token_s=first_s, last_token_s=last_s)
    assert delivery_s(done.steps, some) == pytest.approx(0.25)


def test_without_steps_or_tokens_it_is_none() -> None:
    done = replay(late_s=0.25)
    assert delivery_s(NO_STEPS, done.samples) == 0
    never = np.full(len(done.samples), np.nan)
    none = replace(done.samples, first_token_s=never, last_token_s=never)
    assert delivery_s(done.steps, none) == 0
