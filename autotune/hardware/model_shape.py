"""A model's layers, sorted by what they keep in a KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.hardware.config_fields import Fields, Uncountable

LayerKind = Literal["full", "sliding", "chunked", "latent", "recurrent", "shared"]

# Full layers are every n-th; the number is the family's default for the field, if it has one.
_FULL_EVERY: Mapping[str, tuple[str | None, int]] = {
    "gemma2": (None, 2),
    "gpt_oss": (None, 2),
    "gemma3": ("sliding_window_pattern", 6),
    "gemma3n": (None, 5),
    "cohere2": ("sliding_window_pattern", 4),
    "olmo3": (None, 4),
}
_ALL_SLIDING = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
_OPTIONAL_WINDOW = frozenset(
    {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe"}
)
_LATENT = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "pangu_ultra_moe"})
_NAMED_KINDS: Mapping[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "conv": "recurrent",
}
_ODD_FIELDS: Mapping[str, str] = {
    "attn_config": "attention is described in a form of its own",
    "block_configs": "layers differ from one another",
    "compress_ratios": "layers keep compressed tokens",
    "cross_attention_layers": "some layers attend to an image's tokens",
    "dual_chunk_attention_config": "attention is in two kinds of chunks",
    "global_head_dim": "full and sliding layers have heads of different sizes",
    "hybrid_override_pattern": "layers are given as a pattern of letters",
    "index_topk": "sparse attention keeps an index beside the cache",
    "linear_attn_config": "some layers are recurrent in a form of their own",
    "rswa_window": "the window depends on the prompt",
    "swa_head_dim": "full and sliding layers have heads of different sizes",
    "swa_num_key_value_heads": "full and sliding layers have different KV heads",
}
_RECURRENT_FIELDS = ("mamba_d_state", "mamba_d_ssm", "ssm_state_size", "linear_num_value_heads")
_GENERATORS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


@dataclass(frozen=True, slots=True)
class EngineDecides:
    """No number is honest here: only a started engine can tell. The reason is a clause."""

    reason: str


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers that keep the same.

    Attributes:
        kind: ``full`` attention, ``sliding`` window, ``chunked`` attention (Llama 4), ``latent``
            (MLA: one compressed vector a token), ``recurrent`` (Mamba, linear attention: a state
            a sequence, nothing a token), ``shared`` (reads another layer's cache).
        count: how many.
        kv_heads: of one layer; 1 for latent, 0 for layers without a cache of their own.
        head_size: numbers of one head, or of the latent vector; 0 without a cache.
        window: tokens that a sliding or chunked layer attends to, else None.
    """

    kind: LayerKind
    count: int
    kv_heads: int = 0
    head_size: int = 0
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as its KV cache sees it.

    Attributes:
        model_type: the family, as the config names it.
        layers: all layers, by kind; kinds in the order of their first layer.
        context_tokens: the longest request that the config allows, None if it names none.
    """

    model_type: str
    layers: tuple[Layers, ...]
    context_tokens: int | None


def read_shape(config: Mapping[str, Any]) -> ModelShape | EngineDecides:
    """Read a ``config.json`` as vLLM would count it, or say why that is not for us to do."""
    fields = Fields(config)
    try:
        _refuse_odd(fields)
        kinds = _kinds(fields)
        found = tuple(_layers(fields, kind, count) for kind, count in Counter(kinds).items())
        return ModelShape(fields.model_type, found, fields.context_tokens)
    except Uncountable as reason:
        return EngineDecides(str(reason))


def _refuse_odd(fields: Fields) -> None:
    if fields.anywhere("is_encoder_decoder") is True:
        raise Uncountable("it has an encoder, whose states are cached as well")
    if fields.get("use_bidirectional_attention"):
        raise Uncountable("it attends in both directions")
    names = fields.anywhere("architectures") or []
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise Uncountable("architectures is no list")
    if names and not any(str(name).endswith(_GENERATORS) for name in names):
        raise Uncountable(f"{names[0]} is not known to generate token by token")
    for name, reason in _ODD_FIELDS.items():
        if fields.get(name) is not None:
            raise Uncountable(f"{reason} ({name})")


def _kinds(fields: Fields) -> list[LayerKind]:
    """Return the kind of every layer, the first first."""
    kinds = _own_kinds(fields)
    if set(kinds) == {"recurrent"}:
        raise Uncountable("none of its layers is attention")
    if fields.get("kv_lora_rank") is not None:
        if fields.model_type not in _LATENT or set(kinds) != {"full"}:
            raise Uncountable(f"kv_lora_rank means no latent cache in every {fields.model_type}")
        kinds = ["latent"] * len(kinds)
    shared = fields.number("num_kv_shared_layers") if fields.get("num_kv_shared_layers") else None
    if shared is not None:
        if shared >= len(kinds):
            raise Uncountable("all of its layers share the cache of another one")
        kinds[-shared:] = ["shared"] * shared
    return kinds


def _own_kinds(fields: Fields) -> list[LayerKind]:
    count = fields.layers
    named = fields.get("layer_types")
    if named is not None:
        return _from_names(named, count)
    if fields.model_type == "jamba":
        period, offset = fields.needed("attn_layer_period"), fields.get("attn_layer_offset")
        if type(offset) is not int:
            raise Uncountable("the config leaves attn_layer_offset to the model's class")
        return ["full" if i % period == offset else "recurrent" for i in range(count)]
    if fields.model_type == "qwen3_next":
        every = fields.number("full_attention_interval") or 4
        return ["recurrent" if (i + 1) % every else "full" for i in range(count)]
    for name in _RECURRENT_FIELDS:
        if fields.get(name) is not None:
            raise Uncountable(f"which of its layers are recurrent is not named ({name})")
    if fields.get("attention_chunk_size") is not None:
        return _chunked(fields, count)
    return _windowed(fields, count)


def _from_names(named: Any, count: int) -> list[LayerKind]:
    if not isinstance(named, Sequence) or len(named) != count:
        raise Uncountable(f"layer_types does not name {count} layers")
    # What JSON has in place of a name may be a list, by which nothing can be looked up.
    names = [str(name) for name in named]
    unknown = [name for name in names if name not in _NAMED_KINDS]
    if unknown:
        raise Uncountable(f"layer_types names an unknown kind, {unknown[0]!r}")
    return [_NAMED_KINDS[name] for name in names]


def _chunked(fields: Fields, count: int) -> list[LayerKind]:
    """Layers with rotary positions attend in chunks, the others to everything (Llama 4)."""
    if fields.model_type != "llama4":
        raise Uncountable("which of its layers attend in chunks is not named")
    rotary = fields.get("no_rope_layers")
    if not rotary:
        every = fields.number("no_rope_layer_interval") or 4
        rotary = [(i + 1) % every for i in range(count)]
    if not isinstance(rotary, Sequence) or len(rotary) != count:
        raise Uncountable(f"no_rope_layers does not name {count} layers")
    return ["chunked" if each else "full" for each in rotary]


def _windowed(fields: Fields, count: int) -> list[LayerKind]:
    if fields.model_type in _OPTIONAL_WINDOW:
        if fields.get("use_sliding_window"):
            raise Uncountable("use_sliding_window gives some of its layers a window")
        return ["full"] * count
    if not fields.get("sliding_window"):
        if fields.model_type in _FULL_EVERY:
            raise Uncountable("the config leaves sliding_window to the model's class")
        return ["full"] * count
    if fields.model_type in _ALL_SLIDING:
        return ["sliding"] * count
    if fields.model_type not in _FULL_EVERY:
        raise Uncountable("which of its layers have the sliding window is not named")
    name, default = _FULL_EVERY[fields.model_type]
    every = (name and fields.number(name)) or default
    return ["sliding" if (i + 1) % every else "full" for i in range(count)]


def _layers(fields: Fields, kind: LayerKind, count: int) -> Layers:
    if kind in ("recurrent", "shared"):
        return Layers(kind, count)
    if kind == "latent":
        size = fields.needed("kv_lora_rank") + fields.needed("qk_rope_head_dim")
        return Layers(kind, count, 1, size)
    window = None
    if kind == "sliding":
        window = fields.needed("sliding_window")
    elif kind == "chunked":
        window = fields.needed("attention_chunk_size")
    return Layers(kind, count, fields.kv_heads, fields.head_size, window)
