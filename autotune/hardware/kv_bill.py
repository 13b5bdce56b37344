"""What tokens cost in the KV cache, by the arithmetic that vLLM itself does.

A layer keeps a key and a value of ``head_size`` numbers for each KV head and token (Ainslie et
al., "GQA", EMNLP 2023); a latent layer one vector for both (DeepSeek-V2, 2024, section 2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.hardware.model_shape import EngineDecides, Layers, ModelShape, read_shape

_ELEMENT_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}

MAX_TOKEN_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class KvBill:
    """The cost of tokens on each GPU, in bytes.

    Attributes:
        shape: the model.
        element_bytes: of one cached number.
        tensor_parallel_size: GPUs that share the KV heads. A head is not divided, and a latent
            vector is kept by each.
    """

    shape: ModelShape
    element_bytes: int
    tensor_parallel_size: int = 1

    def layer_bytes(self, layers: Layers) -> int:
        """Return the bytes that one token costs in one of these layers."""
        if layers.kind == "latent":
            return layers.head_size * self.element_bytes
        heads = layers.kv_heads and max(1, layers.kv_heads // self.tensor_parallel_size)
        return 2 * heads * layers.head_size * self.element_bytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one more token while all windows still hold it."""
        return sum(each.count * self.layer_bytes(each) for each in self.shape.layers)

    @property
    def bytes_per_token_unbounded(self) -> int:
        """Bytes of one more token beyond all windows and chunks."""
        return sum(
            each.count * self.layer_bytes(each)
            for each in self.shape.layers
            if each.window is None
        )

    @property
    def window_bytes(self) -> int:
        """Bytes that the sliding and chunked layers of one sequence need at most."""
        return sum(
            each.count * self.layer_bytes(each) * (each.window or 0) for each in self.shape.layers
        )

    @property
    def keeps_state(self) -> bool:
        """Whether each sequence also has a state that the bill does not contain."""
        return any(each.kind == "recurrent" for each in self.shape.layers)

    def request_bytes(self, tokens: int) -> int:
        """Return what a request of that many prompt and output tokens keeps at its end."""
        return sum(
            each.count * self.layer_bytes(each) * _kept(each, tokens) for each in self.shape.layers
        )


def kv_bill(
    config: Mapping[str, Any],
    *,
    kv_cache_dtype: str = "auto",
    dtype: str = "auto",
    tensor_parallel_size: int = 1,
) -> KvBill | EngineDecides:
    """Return the bill of a model.

    Args:
        config: its ``config.json``.
        kv_cache_dtype: vLLM's argument of that name; ``auto`` is what the checkpoint says, else
            the model's own.
        dtype: vLLM's argument of that name. With ``auto`` vLLM runs even float32 checkpoints in
            two bytes.
        tensor_parallel_size: GPUs that share the KV heads.
    """
    shape = read_shape(config)
    if isinstance(shape, EngineDecides):
        return shape
    for each in shape.layers:
        if each.kind != "latent" and not _divides(each.kv_heads, tensor_parallel_size):
            heads = f"{each.kv_heads} KV heads"
            return EngineDecides(f"{heads} cannot be divided among {tensor_parallel_size} GPUs")
    name = kv_cache_dtype
    if name == "auto":
        name = _checkpoint_dtype(config) or dtype
    element_bytes = 2 if name == "auto" else _ELEMENT_BYTES.get(name)
    if element_bytes is None:
        return EngineDecides(f"a cache of {name} packs numbers with their scales")
    bill = KvBill(shape, element_bytes, tensor_parallel_size)
    # Several times what the largest models without grouped heads take.
    if bill.bytes_per_token > MAX_TOKEN_BYTES:
        return EngineDecides(f"{bill.bytes_per_token} bytes a token is more than any model takes")
    return bill


def _divides(heads: int, gpus: int) -> bool:
    """Whether each GPU gets as many heads as any other, or every head as many GPUs."""
    return heads % gpus == 0 or gpus % heads == 0


def _kept(layers: Layers, tokens: int) -> int:
    return tokens if layers.window is None else min(tokens, layers.window)


def _checkpoint_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the cache's type where a quantised checkpoint asks for one."""
    quantised = config.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return None
    inner = quantised.get("quantization")
    for part in (inner, quantised) if isinstance(inner, Mapping) else (quantised,):
        scheme = part.get("kv_cache_scheme") or part.get("kv_cache_quant_algo")
        if isinstance(scheme, Mapping):
            eight = scheme.get("num_bits") == 8 and scheme.get("type") == "float"
            return "fp8" if eight else "the checkpoint's own kind"
        if isinstance(scheme, str):
            return scheme.lower()
    return None
