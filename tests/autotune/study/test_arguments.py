from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.study.arguments import check_arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", 0),
        ("tensor_parallel_size", -1),
        ("tensor_parallel_size", True),
        ("block_size", 0),
        ("block_size", 16.0),
        ("max_num_seqs", "abc"),
        ("max_num_seqs", ""),
        ("max_num_seqs", "0"),
        ("max_num_seqs", [64]),
        ("max_num_batched_tokens", 2**31),
        ("max_model_len", -2),
        ("max_model_len", "9" * 5000),
        ("kv_cache_memory_bytes", -5),
        ("kv_cache_memory_bytes", 10**400),
        ("kv_cache_dtype", [1]),
        ("dtype", 16),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"--engine-arg {name}: ") as caught:
        check_arguments({"enforce_eager": True, name: value})
    assert name in caught.value.hint


def test_what_may_be_meant_is_left_to_vllm() -> None:
    check_arguments({})
    check_arguments({"max_model_len": -1, "block_size": None, "max_num_seqs": "64"})
    check_arguments({"kv_cache_memory_bytes": 2**63 - 1, "tensor_parallel_size": 2**31 - 1})
    check_arguments({"kv_cache_dtype": "fp8_e4m3", "dtype": "auto", "unheard_of": [0]})
