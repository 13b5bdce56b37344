from __future__ import annotations

from typing import Any

import pytest

from autotune.hardware.model_flops import work_by_shape
from autotune.hardware.model_shape import EngineDecides
from objectives.utilization import Work
from tests.autotune.hardware.public_models import PUBLIC

LLAMA_8B = {
    **PUBLIC["meta-llama/Llama-3.1-8B"],
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def work(config: dict[str, Any], max_model_len: int = 8192) -> Work:
    found = work_by_shape(config, max_model_len=max_model_len)
    assert isinstance(found, Work), found
    return found


def test_llama_8b_in_figures() -> None:
    found = work(LLAMA_8B)
    # 6.98 billion weights in its layers, 525 million in its output layer, 2 FLOPs each.
    assert found.flops_per_token == 2 * 32 * (4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 14336)
    assert found.flops_per_token == pytest.approx(2 * 6.98e9, rel=1e-3)
    assert found.flops_per_pair == 4 * 32 * 32 * 128
    assert found.flops_per_sample == 2 * 4096 * 128256
    assert found.source == "shape"


def test_a_layer_with_a_window_attends_to_a_full_one_in_every_token() -> None:
    windowed = {**LLAMA_8B, "model_type": "mistral", "sliding_window": 4096}
    full, short = work(LLAMA_8B), work(windowed)
    assert short.flops_per_pair == 0
    assert short.flops_per_token == full.flops_per_token + 4096 * full.flops_per_pair
    assert work(windowed, max_model_len=4096) == full


def test_a_token_passes_through_its_active_experts_only() -> None:
    experts = {**LLAMA_8B, "num_experts_per_tok": 2, "moe_intermediate_size": 7168}
    assert work(experts) == work(LLAMA_8B)
    shared = {**experts, "n_shared_experts": 1, "shared_expert_intermediate_size": 7168}
    assert work(shared) == work({**LLAMA_8B, "intermediate_size": 4 * 7168})
    dense_first = {**experts, "first_k_dense_replace": 1, "intermediate_size": 14336 + 32 * 100}
    assert work(dense_first) == work({**LLAMA_8B, "intermediate_size": 14336 + 100})


def test_a_feed_forward_layer_without_a_gate_has_two_matrices() -> None:
    plain = work({**LLAMA_8B, "model_type": "phi", "intermediate_size": 3 * 14336})
    assert plain == work({**LLAMA_8B, "intermediate_size": 2 * 14336})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"intermediate_size": None}, "intermediate_size"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"layer_types": ["mamba", *["full_attention"] * 31]}, "recurrent layer"),
        ({"num_kv_shared_layers": 4}, "shared layer"),
        ({"decoder_sparse_step": 2, "num_experts_per_tok": 2}, "decoder_sparse_step"),
        ({"first_k_dense_replace": 33, "num_experts_per_tok": 2}, "first_k_dense_replace is 33"),
    ],
)
def test_what_the_config_does_not_say_is_not_guessed(change: dict[str, Any], reason: str) -> None:
    found = work_by_shape({**LLAMA_8B, **change}, max_model_len=8192)
    assert isinstance(found, EngineDecides)
    assert reason in found.reason
