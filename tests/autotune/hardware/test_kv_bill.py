from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.hardware.kv_bill import KvBill, kv_bill
from autotune.hardware.model_shape import EngineDecides
from tests.autotune.hardware.public_models import PUBLIC

KIB = 1024
NAMES = st.sampled_from(sorted(PUBLIC))


def bill_of(name: str, **arguments: Any) -> KvBill:
    bill = kv_bill(PUBLIC[name], **arguments)
    assert isinstance(bill, KvBill)
    return bill


@pytest.mark.parametrize(
    ("name", "bytes_per_token", "beyond_windows"),
    [
        ("meta-llama/Llama-2-7b-hf", 512 * KIB, 512 * KIB),
        ("meta-llama/Llama-3.1-8B", 128 * KIB, 128 * KIB),
        ("meta-llama/Llama-3.2-3B", 112 * KIB, 112 * KIB),
        ("meta-llama/Llama-3.3-70B-Instruct", 320 * KIB, 320 * KIB),
        ("Qwen/Qwen2.5-7B-Instruct", 56 * KIB, 56 * KIB),
        ("mistralai/Mistral-7B-v0.1", 128 * KIB, 0),
        ("mistralai/Mixtral-8x7B-v0.1", 128 * KIB, 128 * KIB),
        ("microsoft/Phi-3-mini-4k-instruct", 384 * KIB, 0),
        ("google/gemma-2-9b", 336 * KIB, 168 * KIB),
        ("google/gemma-3-27b-it", 496 * KIB, 80 * KIB),
        ("openai/gpt-oss-20b", 48 * KIB, 24 * KIB),
        ("deepseek-ai/DeepSeek-V3", 61 * 576 * 2, 61 * 576 * 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 24 * KIB, 24 * KIB),
        ("ai21labs/Jamba-v0.1", 16 * KIB, 16 * KIB),
        ("meta-llama/Llama-4-Scout-17B-16E", 192 * KIB, 48 * KIB),
        ("tiiuae/falcon-7b", 8 * KIB, 8 * KIB),
        ("openai-community/gpt2", 36 * KIB, 36 * KIB),
    ],
)
def test_public_models(name: str, bytes_per_token: int, beyond_windows: int) -> None:
    bill = bill_of(name)
    assert bill.bytes_per_token == bytes_per_token
    assert bill.bytes_per_token_unbounded == beyond_windows


def test_every_public_model_has_a_row() -> None:
    (mark,) = [each for each in test_public_models.pytestmark if each.name == "parametrize"]  # type: ignore[attr-defined]
    assert {name for name, *_ in mark.args[1]} == set(PUBLIC)


def test_the_models_own_maximum_costs_16_gib() -> None:
    assert bill_of("meta-llama/Llama-3.1-8B").request_bytes(131072) == 16 * 2**30


def test_windows_cap_a_request() -> None:
    bill = bill_of("mistralai/Mistral-7B-v0.1")
    assert bill.window_bytes == 512 * 2**20
    assert bill.request_bytes(100) == 100 * 128 * KIB
    assert bill.request_bytes(32768) == bill.window_bytes


def test_states_are_said_but_not_counted() -> None:
    assert bill_of("ai21labs/Jamba-v0.1").keeps_state
    assert not bill_of("meta-llama/Llama-3.1-8B").keeps_state


@pytest.mark.parametrize(
    ("arguments", "kib"),
    [
        ({"kv_cache_dtype": "fp8"}, 64),
        ({"kv_cache_dtype": "fp8_e4m3"}, 64),
        ({"dtype": "float32"}, 256),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, 128),
        ({"tensor_parallel_size": 4}, 32),
        ({"tensor_parallel_size": 16}, 16),
    ],
)
def test_types_and_parallel_ranks(arguments: dict[str, Any], kib: int) -> None:
    assert bill_of("meta-llama/Llama-3.1-8B", **arguments).bytes_per_token == kib * KIB


def test_every_gpu_keeps_the_whole_latent_vector() -> None:
    name = "deepseek-ai/DeepSeek-V3"
    alone, shared = bill_of(name), bill_of(name, tensor_parallel_size=8)
    assert shared.bytes_per_token == alone.bytes_per_token


def test_a_float32_checkpoint_is_cached_in_two_bytes() -> None:
    assert bill_of("google/gemma-2-9b").element_bytes == 2


@pytest.mark.parametrize(
    "quantised",
    [
        {
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        },
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}},
    ],
)
def test_a_checkpoint_may_ask_for_one_byte(quantised: dict[str, Any]) -> None:
    config = {**PUBLIC["meta-llama/Llama-3.1-8B"], "quantization_config": quantised}
    bill = kv_bill(config)
    assert isinstance(bill, KvBill)
    assert bill.element_bytes == 1
    given_type = kv_bill(config, kv_cache_dtype="bfloat16")
    assert isinstance(given_type, KvBill)
    assert given_type.element_bytes == 2


@pytest.mark.parametrize(
    ("config", "kv_cache_dtype"),
    [
        ({}, "nvfp4"),
        ({}, "int8_per_token_head"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 4, "type": "int"}}}, "auto"),
    ],
)
def test_packed_types_are_left_to_the_engine(config: dict[str, Any], kv_cache_dtype: str) -> None:
    model = {**PUBLIC["meta-llama/Llama-3.1-8B"], **config}
    bill = kv_bill(model, kv_cache_dtype=kv_cache_dtype)
    assert isinstance(bill, EngineDecides)
    assert "packs numbers" in bill.reason


def test_what_the_shape_does_not_say_has_no_bill() -> None:
    assert kv_bill({"model_type": "llama"}) == EngineDecides(
        "the config leaves num_hidden_layers to the model's class"
    )


@given(NAMES, st.integers(0, 300_000), st.integers(0, 300_000))
def test_longer_requests_cost_no_less_and_no_more_than_by_the_token(
    name: str, tokens: int, more: int
) -> None:
    bill = bill_of(name)
    first, second = bill.request_bytes(tokens), bill.request_bytes(tokens + more)
    assert first <= second <= first + more * bill.bytes_per_token
    assert second >= (tokens + more) * bill.bytes_per_token_unbounded


@given(NAMES, st.integers(1, 16))
def test_more_gpus_cost_each_no_more(name: str, gpus: int) -> None:
    alone, shared = bill_of(name), kv_bill(PUBLIC[name], tensor_parallel_size=gpus)
    if isinstance(shared, EngineDecides):
        assert "cannot be divided" in shared.reason
    else:
        assert shared.bytes_per_token <= alone.bytes_per_token
        assert shared.bytes_per_token * gpus >= alone.bytes_per_token


def test_heads_that_no_number_of_gpus_shares_are_left_to_the_engine() -> None:
    bill = kv_bill(PUBLIC["meta-llama/Llama-3.1-8B"], tensor_parallel_size=3)
    assert bill == EngineDecides("8 KV heads cannot be divided among 3 GPUs")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_position_embeddings": 2**31 - 1}, "it allows requests of 2147483647 tokens"),
        ({"head_dim": 2**31 - 1}, "2199023254528 bytes a token is more than any model takes"),
        ({"num_key_value_heads": 2**20}, "17179869184 bytes a token is more than any model"),
        ({"num_hidden_layers": 10_001}, "it names 10001 layers"),
    ],
)
def test_absurd_numbers_are_left_to_the_engine(changes: dict[str, int], reason: str) -> None:
    bill = kv_bill({**PUBLIC["meta-llama/Llama-3.1-8B"], **changes})
    assert isinstance(bill, EngineDecides)
    assert bill.reason.startswith(reason)


def test_the_largest_models_are_counted() -> None:
    largest = {"num_hidden_layers": 126, "head_dim": 128, "num_key_value_heads": 128}
    config = {**PUBLIC["meta-llama/Llama-3.1-8B"], **largest}
    bill = kv_bill({**config, "max_position_embeddings": 10_485_760}, dtype="float32")
    assert isinstance(bill, KvBill)
    assert bill.bytes_per_token == 126 * 2 * 128 * 128 * 4
