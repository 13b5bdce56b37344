from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.forecast.calibration import has_all
from autotune.forecast.grid import (
    DECODE_PROMPT,
    DECODE_STEPS,
    ContextProbe,
    KvProbe,
    SweepPlan,
    sweep_plan,
)
from autotune.simulated.profile import load_profile
from autotune.simulated.shape import shape_of
from autotune.simulated.sweep import sweep_steps
from objectives.steps import Steps

PROFILE = load_profile("sim:h200-llama8b")
LIMITS = {TOKENS: 2048, SEQS: 64, THRESHOLD: 0}


def swept(plan: SweepPlan) -> Steps:
    return sweep_steps(plan, PROFILE.step_times, shape_of(PROFILE.info), LIMITS)


def test_each_prompt_is_a_step_of_its_own() -> None:
    steps = swept(SweepPlan(coarse=(64, 8, 64), decodes=(), contexts=(), kv=(), fine=(7, 9)))
    assert steps.prefill_tokens.tolist() == [64, 8, 64, 7, 9]
    assert steps.requests.tolist() == [1] * 5
    assert steps.decode_requests.tolist() == [0] * 5
    expected_s = PROFILE.step_times.expected_s(steps)
    np.testing.assert_allclose(steps.done_s - steps.begun_s, expected_s, rtol=1e-6)


def test_batches_shrink_by_their_ladder() -> None:
    steps = swept(SweepPlan(coarse=(8,), decodes=(16, 4, 1), contexts=(), kv=(), fine=()))
    alone = steps.select(steps.prefill_tokens == 0)
    counts = Counter(alone.decode_requests.tolist())
    assert counts == dict.fromkeys((16, 4, 1), DECODE_STEPS)
    first = steps.select(steps.prefill_tokens > 8)
    assert first.prefill_tokens.tolist() == [16 * DECODE_PROMPT]


def test_prompts_in_chunks_see_longer_contexts() -> None:
    probe = ContextProbe(chunk_tokens=512, prompt_tokens=2048)
    steps = swept(SweepPlan(coarse=(8,), decodes=(), contexts=(probe,), kv=(), fine=(16,)))
    assert steps.prefill_tokens.tolist() == [8, 512, 512, 512, 512, 16]
    assert (np.diff(steps.prefill_pairs[1:5]) == 512 * 512).all()


def test_batches_of_long_contexts() -> None:
    steps = swept(SweepPlan(coarse=(8,), decodes=(), contexts=(), kv=(KvProbe(8, 1024),), fine=()))
    decodes = steps.select((steps.prefill_tokens == 0) & (steps.decode_requests == 8))
    assert (decodes.decode_kv_tokens >= 8 * 1024).all()
    assert len(decodes) == DECODE_STEPS


@pytest.mark.parametrize(
    ("tokens", "seqs"), [(8192, 1024), (2048, 128), (512, 256), (300, 300), (64, 64), (40, 2)]
)
def test_batches_are_steady_whatever_the_limits(tokens: int, seqs: int) -> None:
    """Only planned batches are decoded without a prompt beside them, each as often as planned."""
    plan = sweep_plan(
        max_tokens=tokens,
        max_seqs=seqs,
        max_model_len=8192,
        capture_sizes=(),
        kv_cache_tokens=400_000,
        tile=128,
    )
    shape = replace(shape_of(PROFILE.info), kv_blocks=25_000)
    limits = {TOKENS: tokens, SEQS: seqs, THRESHOLD: 16}
    steps = sweep_steps(plan, PROFILE.step_times, shape, limits)
    alone = steps.select(steps.prefill_tokens == 0)
    long = alone.decode_kv_tokens >= 1024 * alone.decode_requests
    assert Counter(alone.decode_requests[~long].tolist()) == dict.fromkeys(
        plan.decodes, DECODE_STEPS
    )
    assert Counter(alone.decode_requests[long].tolist()) == {
        probe.requests: DECODE_STEPS for probe in plan.kv
    }
    assert has_all(steps, plan)
