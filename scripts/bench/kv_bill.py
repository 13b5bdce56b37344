"""The size of the KV cache: what we estimate against what engines report.

Every architecture is a folder with nothing but a config.json of a few small layers; vLLM makes up
the weights. One engine is started for each, with the same fixed memory for its KV cache.

    scripts/bench/kv_bill OUT.json [--only llama,gemma2]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.engine.protocol import EngineInfo, TrialFailed
from autotune.engine.supervisor import Supervisor, Watchdogs
from autotune.hardware.kv_bill import kv_bill
from autotune.hardware.kv_pool import make_pool
from autotune.hardware.model_shape import EngineDecides
from autotune.study.kv_fit import pool_rules

ARGUMENTS: Mapping[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 * 2**20,
    "max_model_len": 4096,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
}
SMALL: Mapping[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "max_position_embeddings": 8192,
    "vocab_size": 1024,
    "dtype": "bfloat16",
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 4,
        "head_dim": 32,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_key_value_heads": 2,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "num_key_value_heads": 2,
        "sliding_window": 1024,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_key_value_heads": 2,
        "head_dim": 64,
        "sliding_window": 512,
        "num_hidden_layers": 7,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "head_dim": 64,
        "sliding_window": 256,
        "sliding_window_pattern": 6,
        "num_hidden_layers": 13,
    },
    "deepseek_v2": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 6,
        "moe_layer_freq": 1,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
    },
    "llama4": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": 8,
        "attention_chunk_size": 1024,
        "intermediate_size_mlp": 256,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 8,
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 128,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "falcon": {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "num_kv_heads": 4,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 128,
        "n_head": 4,
        "n_layer": 6,
        "n_positions": 4096,
        "vocab_size": 1024,
        "dtype": "bfloat16",
    },
}


def config_of(name: str) -> dict[str, Any]:
    own = CONFIGS[name]
    return dict(own) if "n_layer" in own else {**SMALL, **own}


def compare(name: str, supervisor: Supervisor, folder: Path) -> dict[str, Any]:
    """Start one engine and return its figure beside ours; a failure is told, not hidden."""
    config = config_of(name)
    model = folder / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    arguments = {**ARGUMENTS, "model": str(model)}
    try:
        started = supervisor.start(arguments, folder / f"{name}.log")
    except TrialFailed as outcome:
        return {"architecture": name, "failure": str(outcome)}
    supervisor.stop()
    return {
        "architecture": name,
        **figures(config, started.info),
        "start_s": round(started.start_s, 1),
    }


def figures(config: Mapping[str, Any], info: EngineInfo) -> dict[str, Any]:
    bill = kv_bill(config, dtype=info.resolved["dtype"])
    rules = pool_rules(info.resolved)
    if isinstance(bill, EngineDecides) or isinstance(rules, EngineDecides):
        raise ValueError(f"not to be counted: {bill} {rules}")
    pool = make_pool(bill, rules)
    if isinstance(pool, EngineDecides) or info.kv_cache_tokens is None:
        raise ValueError(f"not to be counted: {pool}")
    estimate = pool.tokens_in(ARGUMENTS["kv_cache_memory_bytes"])
    return {
        "config": dict(config),
        "layers": {each.kind: each.count for each in bill.shape.layers},
        "bytes_per_token": bill.bytes_per_token,
        "rules": asdict(rules),
        "estimated_tokens": estimate,
        "reported_tokens": info.kv_cache_tokens,
        "ratio": estimate / info.kv_cache_tokens,
        "vllm_version": info.vllm_version,
        "device": info.device,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(CONFIGS))
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Supervisor(log_folder=folder, watchdogs=Watchdogs(start_s=120.0)) as supervisor:
            for architecture in arguments.only.split(","):
                row = compare(architecture, supervisor, folder)
                print(json.dumps(row))
                rows.append(row)
    result = {"arguments": dict(ARGUMENTS), "architectures": rows}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
