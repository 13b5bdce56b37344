from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import half_octaves
from autotune.forecast.grid import DECODE_PROMPT, DECODE_STEPS, SweepPlan, sweep_plan
from tests.autotune.forecast.builders import FakeEngine, plan, smooth_ms


def test_a_plan_survives_json() -> None:
    whole = plan()
    assert SweepPlan.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_the_coarse_part_has_every_rung_and_both_sides_of_the_capture_limit() -> None:
    counts = Counter(plan().coarse)
    assert set(half_octaves(128, 128, 16384)) <= set(counts)
    assert counts[512] == counts[513] == 5
    assert min(counts.values()) >= 3


def test_sizes_of_a_pair_stand_together_and_rounds_are_shuffled() -> None:
    fine = plan().fine
    pairs = [tuple(sorted(fine[at : at + 2])) for at in range(0, len(fine), 2)]
    assert all(above == below + 1 for below, above in pairs)
    assert {(512, 513), (1024, 1025), (2048, 2049), (8192, 8193)} <= set(pairs)
    assert {count for pair, count in Counter(pairs).items() if pair[0] > 2048} == {3}
    assert pairs != sorted(pairs)
    assert plan().fine == fine


def test_batches_descend_from_the_cap_or_from_what_the_cache_holds() -> None:
    assert plan(max_seqs=200).decodes[:3] == (200, 192, 128)
    little = plan(kv_cache_tokens=4096).decodes
    assert little[0] * (DECODE_PROMPT + DECODE_STEPS * len(little)) <= 4096
    assert little[-1] == 1


def test_without_room_there_are_no_probes() -> None:
    tiny = plan(max_tokens=256, max_model_len=64, kv_cache_tokens=512)
    assert (tiny.decodes, tiny.contexts, tiny.kv) == ((), (), ())
    assert max(tiny.coarse) == 63


def test_it_takes_less_than_two_minutes_on_a_gpu() -> None:
    engine = FakeEngine()
    engine.sweep(plan(max_seqs=1024))
    assert engine.clock_s < 60


def test_it_takes_less_than_two_minutes_on_a_cpu() -> None:
    engine = FakeEngine(step_ms=smooth_ms, pair_ns=20, kv_token_ns=1000)
    engine.sweep(plan(max_tokens=8192, max_model_len=8192, capture_sizes=()))
    assert engine.clock_s < 120


@given(
    st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 40_000),
            "max_seqs": st.integers(1, 2048),
            "max_model_len": st.integers(2, 100_000),
            "kv_cache_tokens": st.integers(64, 1_000_000),
            "tile": st.integers(1, 600),
        }
    ),
    st.lists(st.integers(1, 1024), max_size=8),
)
def test_no_plan_asks_for_more_than_the_engine_has(
    limits: dict[str, int], capture_sizes: list[int]
) -> None:
    found = sweep_plan(**limits, capture_sizes=capture_sizes)
    kv_cache_tokens, max_model_len = limits["kv_cache_tokens"], limits["max_model_len"]
    longest = min(max_model_len - 1, kv_cache_tokens)
    assert found.coarse
    for size in found.coarse + found.fine:
        assert 1 <= size <= min(limits["max_tokens"], longest)
    for probe in found.contexts:
        assert probe.chunk_tokens <= limits["max_tokens"]
        assert probe.prompt_tokens <= longest
    for kv in found.kv:
        assert kv.requests <= limits["max_seqs"]
        assert kv.requests * (kv.context_tokens + DECODE_STEPS) <= kv_cache_tokens
        assert kv.context_tokens + DECODE_STEPS <= max_model_len
    assert list(found.decodes) == sorted(found.decodes, reverse=True)
    assert all(size <= limits["max_seqs"] for size in found.decodes)
