"""The smallest engine that is real: the demo model with made-up weights on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.demo import resolve_model

ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}
KV_CACHE_BYTES = 64 * 2**20
KV_BYTES_PER_TOKEN = 2 * 4 * 2 * 32 * 2
"""Keys and values, layers, heads, dimensions of a head, bytes of bfloat16."""

ENGINE_ARGS: Mapping[str, Any] = {
    "model": str(resolve_model("demo:tiny-llama")),
    "load_format": "dummy",
    "kv_cache_memory_bytes": KV_CACHE_BYTES,
    "enforce_eager": True,
    "max_model_len": 8192,
}
