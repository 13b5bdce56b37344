from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import half_octaves
from autotune.forecast.grid import DECODE_PROMPT, DECODE_STEPS, KvProbe, SweepPlan, sweep_plan
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


def test_prompts_of_the_ladder_fit_into_one_step() -> None:
    assert plan(max_tokens=8192).decode_prompt == DECODE_PROMPT
    assert plan(max_tokens=512, max_seqs=256).decode_prompt == 2
    assert plan(max_tokens=256, max_seqs=256).decode_prompt == 1
    # What one step computes is of the batches that have room in the cache.
    assert plan(max_tokens=512, max_seqs=256, kv_cache_tokens=4096).decode_prompt > 2


def test_who_is_prefilled_first_decodes_until_the_batch_is_whole() -> None:
    long = DECODE_STEPS + 1
    assert KvProbe(4, 1000).traffic(4000) == [(1000, long)] * 4
    # 2 prompts and 48 tokens of the third; then 2 decode, and there is room for 2046 tokens.
    assert [outputs - long for _, outputs in KvProbe(4, 1000).traffic(2048)] == [1, 1, 0, 0]
    # 1 decodes from the third step on, 2 from the fifth.
    assert [outputs - long for _, outputs in KvProbe(3, 1000).traffic(512)] == [4, 2, 0]


def test_a_batch_that_would_take_long_to_be_whole_is_left_out() -> None:
    assert [probe.requests for probe in plan(max_tokens=512).kv] == [32, 8, 16]
    assert [probe.requests for probe in plan(max_tokens=64, max_seqs=64).kv] == [8]


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
        lengths = [sum(each) for each in kv.traffic(limits["max_tokens"])]
        assert sum(lengths) <= kv_cache_tokens
        assert max(lengths) <= max_model_len
    assert list(found.decodes) == sorted(found.decodes, reverse=True)
    assert all(size <= limits["max_seqs"] for size in found.decodes)
    ladder = found.ladder_traffic()
    assert sum(prompt for prompt, _ in ladder) <= limits["max_tokens"]
    assert sum(map(sum, ladder)) <= kv_cache_tokens
