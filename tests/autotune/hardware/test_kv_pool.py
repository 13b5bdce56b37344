from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.hardware.kv_bill import KvBill, kv_bill
from autotune.hardware.kv_pool import Group, KvPool, PoolRules, make_pool
from autotune.hardware.model_shape import EngineDecides
from tests.autotune.hardware.public_models import PUBLIC

GIB = 2**30
RULES = PoolRules(block_size=16, max_model_len=8192, in_flight_tokens=2048)
MEASURED = Path(__file__).resolve().parents[3] / "docs" / "results" / "kv_bill_cpu.json"
DIVISIBLE = sorted(name for name in PUBLIC if not any(part in name for part in ("Next", "Jamba")))


def bill_of(config: Any) -> KvBill:
    bill = kv_bill(config)
    assert isinstance(bill, KvBill)
    return bill


def pool_of(name: str, rules: PoolRules = RULES) -> KvPool:
    pool = make_pool(bill_of(PUBLIC[name]), rules)
    assert isinstance(pool, KvPool)
    return pool


def measured() -> list[dict[str, Any]]:
    result = json.loads(MEASURED.read_text(encoding="utf-8"))
    return [row for row in result["architectures"] if "failure" not in row]


@pytest.mark.parametrize("row", measured(), ids=lambda row: row["architecture"])
def test_engines_that_were_started_reported_what_we_estimate(row: dict[str, Any]) -> None:
    pool = make_pool(bill_of(row["config"]), PoolRules(**row["rules"]))
    assert isinstance(pool, KvPool)
    memory_bytes = json.loads(MEASURED.read_text())["arguments"]["kv_cache_memory_bytes"]
    assert pool.tokens_in(memory_bytes) == row["reported_tokens"]


def test_enough_architectures_were_started() -> None:
    kinds = {kind for row in measured() for kind in row["layers"]}
    assert len(measured()) >= 5
    assert {"full", "sliding", "chunked", "latent"} <= kinds


def test_full_layers_are_one_group() -> None:
    pool = pool_of("meta-llama/Llama-3.1-8B")
    assert pool.groups == (Group("full", 1),)
    assert pool.bytes_per_block == 16 * 128 * 1024
    assert pool.tokens_in(16 * GIB) == 131072
    assert pool.request_blocks(17) == 2
    assert pool.request_bytes(17) == 2 * pool.bytes_per_block


def test_sliding_layers_are_grouped_by_the_rarer_kind() -> None:
    """Gemma 3: 10 full layers and 52 sliding ones in 6 groups, padded to 10."""
    pool = pool_of("google/gemma-3-27b-it")
    assert pool.groups == (Group("sliding", 6, 1024), Group("full", 1))
    assert pool.bytes_per_block == 10 * 16 * 8192


def test_nearly_equal_counts_share_the_larger_size() -> None:
    """Seven alternating layers: 4 sliding and 3 full ones are two groups of 4, not three of 3."""
    config = {**PUBLIC["google/gemma-2-9b"], "num_hidden_layers": 7}
    pool = make_pool(bill_of(config), RULES)
    assert isinstance(pool, KvPool)
    assert pool.groups == (Group("sliding", 1, 4096), Group("full", 1))
    assert pool.bytes_per_block == 4 * 16 * 8192


def test_without_the_hybrid_manager_windows_are_allocated_in_full() -> None:
    rules = PoolRules(16, 8192, 2048, hybrid_manager=False)
    pool = pool_of("openai/gpt-oss-20b", rules)
    assert pool.groups == (Group("full", 1),)
    assert pool.tokens_in(GIB) == GIB // (48 * 1024) // 16 * 16
    assert pool_of("openai/gpt-oss-20b").tokens_in(GIB) > pool.tokens_in(GIB)


def test_a_model_of_windows_alone_needs_no_manager_for_them() -> None:
    rules = PoolRules(16, 32768, 2048, hybrid_manager=False)
    pool = pool_of("mistralai/Mistral-7B-v0.1", rules)
    assert pool.groups == (Group("sliding", 1, 4096),)
    assert pool.request_blocks(32768) == (4095 + 2048 + 15) // 16 + 1


def test_chunked_layers_hold_their_chunk_and_what_is_in_flight() -> None:
    """Llama 4: 12 full layers and 36 chunked ones in 3 groups."""
    name = "meta-llama/Llama-4-Scout-17B-16E"
    pool = pool_of(name, PoolRules(16, 131072, 2048))
    assert pool.groups == (Group("chunked", 3, 8192), Group("full", 1))
    assert pool.request_blocks(131072) == 8192 + 3 * (8192 + 2048) // 16
    whole = pool_of(name, PoolRules(16, 131072, 2048, hybrid_manager=False))
    assert whole.groups == (Group("full", 1),)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-Next-80B-A3B-Instruct", "ai21labs/Jamba-v0.1"])
def test_recurrent_layers_are_left_to_the_engine(name: str) -> None:
    pool = make_pool(bill_of(PUBLIC[name]), RULES)
    assert isinstance(pool, EngineDecides)
    assert "states" in pool.reason


@given(st.sampled_from(DIVISIBLE), st.integers(0, 80 * GIB), st.sampled_from([16, 64, 128]))
def test_the_size_in_tokens_and_the_blocks_are_two_sides_of_one_thing(
    name: str, memory_bytes: int, block_size: int
) -> None:
    pool = pool_of(name, PoolRules(block_size, 8192, 2048))
    blocks, tokens = pool.blocks_in(memory_bytes), pool.tokens_in(memory_bytes)
    assert 0 <= tokens * pool.request_blocks(8192) <= blocks * 8192
    assert abs(pool.blocks_of_size(tokens) - blocks) <= 1


@given(st.sampled_from(DIVISIBLE), st.integers(1, 8191))
def test_a_longer_request_holds_no_fewer_blocks(name: str, tokens: int) -> None:
    pool = pool_of(name)
    assert pool.request_blocks(tokens) <= pool.request_blocks(tokens + 1)
    assert pool.request_bytes(tokens) >= bill_of(PUBLIC[name]).request_bytes(tokens)
