from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.hardware.kv_bill import KvBill, kv_bill
from autotune.hardware.kv_pool import KvPool, PoolRules, make_pool
from autotune.hardware.model_shape import EngineDecides
from autotune.study.kv_fit import Need, peak_need, pool_rules
from tests.autotune.hardware.public_models import PUBLIC
from tests.autotune.traffic.examples import request, trace

KNOWN = {"block_size": 16, "max_model_len": 8192, "max_num_batched_tokens": 2048}


def gemma_pool() -> KvPool:
    bill = kv_bill(PUBLIC["google/gemma-2-9b"])
    assert isinstance(bill, KvBill)
    pool = make_pool(bill, PoolRules(16, 8192, 2048))
    assert isinstance(pool, KvPool)
    return pool


@pytest.mark.parametrize(
    ("arguments", "rules"),
    [
        ({}, PoolRules(16, 8192, 2048)),
        ({"async_scheduling": True}, PoolRules(16, 8192, 4096)),
        ({"disable_hybrid_kv_cache_manager": True}, PoolRules(16, 8192, 2048, False)),
        (
            {"pipeline_parallel_size": 1, "num_gpu_blocks_override": None},
            PoolRules(16, 8192, 2048),
        ),
    ],
)
def test_rules_come_from_the_arguments(arguments: dict[str, Any], rules: PoolRules) -> None:
    assert pool_rules({**KNOWN, **arguments}) == rules


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size changes"),
        ({"num_gpu_blocks_override": 100}, "num_gpu_blocks_override changes"),
        ({"speculative_config": {"method": "ngram"}}, "speculative_config changes"),
        ({"block_size": None}, "block_size is not known"),
        ({"block_size": 0}, "block_size is not known"),
        ({"max_model_len": "8k"}, "max_model_len is not known"),
        ({"max_num_batched_tokens": True}, "max_num_batched_tokens is not known"),
    ],
)
def test_what_divides_the_cache_otherwise_is_left_to_the_engine(
    arguments: dict[str, Any], reason: str
) -> None:
    rules = pool_rules({**KNOWN, **arguments})
    assert isinstance(rules, EngineDecides)
    assert reason in rules.reason


def test_requests_that_do_not_meet_do_not_add_up() -> None:
    """11 output tokens stay for 1 s and ten times 50 ms."""
    apart = trace(request(0.0, 100, 11), request(1.5, 200, 11))
    assert peak_need(apart, max_num_seqs=None, pool=None) == Need(1, 211, None, 322)
    together = trace(request(0.0, 100, 11), request(1.4, 200, 11))
    assert peak_need(together, max_num_seqs=None, pool=None) == Need(2, 322, None, 322)


def test_the_cap_bounds_what_runs_at_once() -> None:
    crowd = trace(*(request(0.0, 100 * (i + 1), 10) for i in range(10)))
    need = peak_need(crowd, max_num_seqs=2, pool=None)
    assert need == Need(10, 910 + 1010, None, 910 + 1010)


def test_blocks_count_each_group_of_layers() -> None:
    """Gemma 2 holds blocks for full and for sliding layers, and one more for the window's edge."""
    pool = gemma_pool()
    need = peak_need(trace(request(0.0, 100, 10)), max_num_seqs=None, pool=pool)
    assert need.blocks == pool.request_blocks(110) == 7 + 8


@given(
    st.lists(
        st.tuples(st.floats(0, 60), st.integers(1, 5000), st.integers(1, 500)),
        min_size=1,
        max_size=30,
    ),
    st.none() | st.integers(1, 40),
)
def test_a_peak_is_between_the_longest_request_and_the_bound(
    requests: list[tuple[float, int, int]], cap: int | None
) -> None:
    traffic = trace(*(request(at_s, prompt, output) for at_s, prompt, output in requests))
    need = peak_need(traffic, max_num_seqs=cap, pool=None)
    lengths = np.sort(traffic.input_lengths + traffic.output_lengths)[::-1]
    assert traffic.longest_request <= need.tokens <= need.bound_tokens
    assert need.bound_tokens == int(lengths[:cap].sum())
    assert 1 <= need.open_requests <= len(requests)
