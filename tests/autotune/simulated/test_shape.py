from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.protocol import EngineInfo
from autotune.simulated.profile import load_profile
from autotune.simulated.shape import kv_blocks, kv_tokens, shape_of

INFO = load_profile("sim:cpu-tiny-llama").info


def engine(kv_cache_tokens: int | None = 65536, **resolved: Any) -> EngineInfo:
    given = {**INFO.resolved, **resolved}
    return replace(INFO, resolved=given, kv_cache_tokens=kv_cache_tokens)


@pytest.mark.parametrize(
    ("tokens", "max_model_len", "blocks"),
    [
        (4096, 1024, 256),
        # 60 blocks for a request of 950 tokens: 256 blocks are 4.267 of them.
        (256 * 950 // 60, 950, 256),
        # As vLLM rounds: a float may fall just below.
        (4095, 1024, 256),
    ],
)
def test_blocks_follow_from_the_tokens_that_vllm_tells(
    tokens: int, max_model_len: int, blocks: int
) -> None:
    info = engine(tokens, max_model_len=max_model_len, block_size=16)
    assert kv_blocks(info) == shape_of(info).kv_blocks == blocks


@given(st.integers(2, 10**6), st.integers(64, 200_000), st.sampled_from((8, 16, 128)))
def test_blocks_and_back(blocks: int, max_model_len: int, block_size: int) -> None:
    info = engine(max_model_len=max_model_len, block_size=block_size)
    per_request = -(-max_model_len // block_size)
    # Once in whole numbers, once as vLLM computes it.
    for tokens in (kv_tokens(blocks, info), int(blocks / per_request * max_model_len)):
        assert kv_blocks(replace(info, kv_cache_tokens=tokens)) == blocks


def test_of_an_engine_that_was_only_described_nobody_knows_the_cache() -> None:
    with pytest.raises(ValueError, match="was not started"):
        shape_of(engine(None))


@pytest.mark.parametrize(
    ("resolved", "name", "expected"),
    [
        ({"scheduling_policy": "priority"}, "priority", True),
        ({"scheduling_policy": "fcfs"}, "priority", False),
        ({"async_scheduling": True}, "in_flight", 2),
        ({"enable_prefix_caching": False}, "caching", False),
        ({"enable_chunked_prefill": False}, "chunked", False),
        ({"scheduler_reserve_full_isl": False}, "whole_prompt", False),
        ({"watermark": 0.25}, "watermark", 0.25),
        ({"block_size": None}, "block_size", 16),
    ],
)
def test_what_an_engine_resolves_to_is_its_shape(
    resolved: dict[str, Any], name: str, expected: object
) -> None:
    assert getattr(shape_of(engine(**resolved)), name) == expected


@pytest.mark.parametrize(
    ("version", "alone"), [("0.26.0", True), ("0.32.1+cpu", False), ("dev", False)]
)
def test_the_threshold_of_a_request_that_is_alone_is_a_matter_of_version(
    version: str, alone: bool
) -> None:
    assert shape_of(replace(INFO, vllm_version=version)).threshold_alone is alone
