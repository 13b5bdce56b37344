from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.hardware.model_shape import EngineDecides, Layers, ModelShape, read_shape
from tests.autotune.hardware.public_models import PUBLIC

LLAMA = PUBLIC["meta-llama/Llama-3.1-8B"]


def shape_of(name: str) -> ModelShape:
    shape = read_shape(PUBLIC[name])
    assert isinstance(shape, ModelShape)
    return shape


def reason_of(**changes: Any) -> str:
    shape = read_shape({**LLAMA, **changes})
    assert isinstance(shape, EngineDecides)
    return shape.reason


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("meta-llama/Llama-2-7b-hf", (Layers("full", 32, 32, 128),)),
        ("meta-llama/Llama-3.2-3B", (Layers("full", 28, 8, 128),)),
        ("Qwen/Qwen2.5-7B-Instruct", (Layers("full", 28, 4, 128),)),
        ("mistralai/Mistral-7B-v0.1", (Layers("sliding", 32, 8, 128, 4096),)),
        ("mistralai/Mixtral-8x7B-v0.1", (Layers("full", 32, 8, 128),)),
        ("microsoft/Phi-3-mini-4k-instruct", (Layers("sliding", 32, 32, 96, 2047),)),
        (
            "google/gemma-2-9b",
            (Layers("sliding", 21, 8, 256, 4096), Layers("full", 21, 8, 256)),
        ),
        (
            "google/gemma-3-27b-it",
            (Layers("sliding", 52, 16, 128, 1024), Layers("full", 10, 16, 128)),
        ),
        ("openai/gpt-oss-20b", (Layers("sliding", 12, 8, 64, 128), Layers("full", 12, 8, 64))),
        ("deepseek-ai/DeepSeek-V3", (Layers("latent", 61, 1, 576),)),
        (
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            (Layers("recurrent", 36), Layers("full", 12, 2, 256)),
        ),
        ("ai21labs/Jamba-v0.1", (Layers("recurrent", 28), Layers("full", 4, 8, 128))),
        (
            "meta-llama/Llama-4-Scout-17B-16E",
            (Layers("chunked", 36, 8, 128, 8192), Layers("full", 12, 8, 128)),
        ),
        ("tiiuae/falcon-7b", (Layers("full", 32, 1, 64),)),
        ("openai-community/gpt2", (Layers("full", 12, 12, 64),)),
    ],
)
def test_layers_of_public_models(name: str, layers: tuple[Layers, ...]) -> None:
    assert shape_of(name).layers == layers


def test_the_context_may_stand_under_other_names() -> None:
    assert shape_of("openai-community/gpt2").context_tokens == 1024
    assert shape_of("google/gemma-3-27b-it").context_tokens == 131072
    assert shape_of("meta-llama/Llama-4-Scout-17B-16E").context_tokens is None


def test_layers_that_share_a_cache_keep_none() -> None:
    """Gemma 3n: the last layers read the cache of earlier ones."""
    config = {
        **LLAMA,
        "model_type": "gemma3n_text",
        "head_dim": 256,
        "num_key_value_heads": 2,
        "num_hidden_layers": 10,
        "num_kv_shared_layers": 4,
        "sliding_window": 512,
    }
    shape = read_shape(config)
    assert isinstance(shape, ModelShape)
    assert shape.layers == (
        Layers("sliding", 5, 2, 256, 512),
        Layers("full", 1, 2, 256),
        Layers("shared", 4),
    )


def test_a_grouped_falcon_keeps_all_its_heads() -> None:
    config = {**PUBLIC["tiiuae/falcon-7b"], "new_decoder_architecture": True, "num_kv_heads": 8}
    shape = read_shape(config)
    assert isinstance(shape, ModelShape)
    assert shape.layers == (Layers("full", 32, 8, 64),)


def test_a_window_of_zero_is_no_window() -> None:
    assert read_shape({**LLAMA, "model_type": "mistral", "sliding_window": 0}) == ModelShape(
        "mistral", (Layers("full", 32, 8, 128),), 131072
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_key_value_heads": None, "model_type": "mistral"}, "num_key_value_heads"),
        ({"num_hidden_layers": None}, "leaves num_hidden_layers to the model's class"),
        ({"num_hidden_layers": 10**9}, "names 1000000000 layers"),
        ({"num_attention_heads": [4, 8]}, "num_attention_heads is [4, 8]"),
        ({"hidden_size": 16}, "more attention heads than hidden units"),
        ({"model_type": "gemma2"}, "sliding_window"),
        ({"model_type": "gemma2", "sliding_window": 512}, "head_dim"),
        ({"model_type": "brand_new", "sliding_window": 512}, "which of its layers"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"architectures": ["BertModel"]}, "BertModel is not known to generate"),
        ({"architectures": 5}, "architectures is no list"),
        ({"use_bidirectional_attention": True}, "both directions"),
        ({"index_topk": 2048}, "index"),
        ({"global_head_dim": 512}, "different sizes"),
        ({"mamba_d_state": 16}, "recurrent"),
        ({"attention_chunk_size": 1024}, "chunks"),
        ({"kv_lora_rank": 256, "model_type": "minicpm3"}, "kv_lora_rank"),
        ({"layer_types": ["full_attention"]}, "does not name 32 layers"),
        ({"layer_types": ["brand_new"] * 32}, "unknown kind, 'brand_new'"),
        ({"layer_types": [["mamba"]] * 32}, "unknown kind, \"['mamba']\""),
        ({"layer_types": ["mamba"] * 32}, "none of its layers is attention"),
        ({"num_kv_shared_layers": 32}, "share"),
        ({"model_type": "jamba", "attn_layer_period": 8}, "attn_layer_offset"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8, "no_rope_layers": [1]}, "32"),
    ],
)
def test_what_is_unusual_is_left_to_the_engine(changes: dict[str, Any], reason: str) -> None:
    assert reason in reason_of(**changes)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
                *("hidden_size", "sliding_window", "layer_types", "model_type", "kv_lora_rank"),
                *("qk_rope_head_dim", "attention_chunk_size", "num_kv_shared_layers"),
                *("attn_layer_period", "no_rope_layers", "architectures", "text_config"),
                *("sliding_window_pattern", "full_attention_interval", "multi_query"),
            ]
        ),
        st.none()
        | st.booleans()
        | st.integers(-5, 99)
        | st.floats()
        | st.sampled_from(["llama", "gemma3", "jamba", "llama4", "deepseek_v3", "qwen3_next"])
        | st.lists(st.sampled_from(["full_attention", "sliding_attention", "mamba"]), max_size=3)
        | st.dictionaries(st.sampled_from(["num_hidden_layers"]), st.integers(-1, 9)),
    )
)
def test_no_config_is_too_odd_to_be_answered(config: dict[str, Any]) -> None:
    shape = read_shape({**LLAMA, **config})
    if isinstance(shape, EngineDecides):
        assert shape.reason
    else:
        assert sum(each.count for each in shape.layers) > 0
        assert all(each.window is None or each.window > 0 for each in shape.layers)
