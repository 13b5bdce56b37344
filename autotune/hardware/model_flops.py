"""What a model computes, counted from its ``config.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.hardware.config_fields import Fields, Uncountable
from autotune.hardware.model_shape import EngineDecides, Layers, read_shape
from objectives.utilization import Work

# Families whose feed-forward layers have two matrices; those of all others are gated by a third.
_UNGATED = frozenset(
    {"codegen", "falcon", "gpt_bigcode", "gpt_neox", "nemotron", "phi", "starcoder2"}
)
_ACTIVE_EXPERTS = ("num_experts_per_tok", "moe_topk")
_EXPERT_SIZES = ("moe_intermediate_size", "intermediate_size")


def work_by_shape(config: Mapping[str, Any], *, max_model_len: int) -> Work | EngineDecides:
    """Count 2 FLOPs a weight of the linear layers, and 4 a head dimension of an attention pair.

    A layer with a window attends in every token to as much as its window holds. That is too
    much at the beginning of a context, and keeps the account to one figure a token and one a
    pair; a window of ``max_model_len`` or more is none.

    Returns:
        The account, or why the config does not say enough: layers that are recurrent, latent
        or share another one's cache, or a field that is left to the model's class.
    """
    shape = read_shape(config)
    if isinstance(shape, EngineDecides):
        return shape
    fields = Fields(config)
    try:
        heads, hidden = fields.needed("num_attention_heads", "n_head", "n_heads"), _hidden(fields)
        per_token, per_pair = _feed_forward(fields), 0
        for layers in shape.layers:
            per_token += layers.count * 2 * _attention_weights(layers, hidden, heads)
            pair = layers.count * 4 * heads * layers.head_size
            if layers.window is not None and layers.window < max_model_len:
                per_token += pair * layers.window
            else:
                per_pair += pair
        return Work(per_token, per_pair, 2 * hidden * fields.needed("vocab_size"), "shape")
    except Uncountable as reason:
        return EngineDecides(str(reason))


def _hidden(fields: Fields) -> int:
    return fields.needed("hidden_size", "n_embd", "d_model")


def _attention_weights(layers: Layers, hidden: int, heads: int) -> int:
    """Weights of the projections to queries, keys and values and back, of one layer."""
    if layers.kind not in ("full", "sliding", "chunked"):
        raise Uncountable(f"the weights of a {layers.kind} layer are not counted")
    return hidden * layers.head_size * (2 * heads + 2 * layers.kv_heads)


def _feed_forward(fields: Fields) -> int:
    """Operations of the feed-forward layers for one token, over all layers."""
    active = fields.number(*_ACTIVE_EXPERTS) if _has_experts(fields) else None
    dense_first = fields.get("first_k_dense_replace") or 0
    if type(dense_first) is not int or not 0 <= dense_first <= fields.layers:
        raise Uncountable(f"first_k_dense_replace is {dense_first!r}")
    dense = fields.layers if active is None else dense_first
    width = dense * fields.needed("intermediate_size") if dense else 0
    if active is not None:
        width += (fields.layers - dense) * _expert_width(fields, active)
    matrices = 2 if fields.model_type in _UNGATED else 3
    return 2 * matrices * _hidden(fields) * width


def _has_experts(fields: Fields) -> bool:
    for name in ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"):
        if fields.get(name) not in (None, 1):
            raise Uncountable(f"experts are in some of its layers only ({name})")
    return fields.number(*_ACTIVE_EXPERTS) is not None


def _expert_width(fields: Fields, active: int) -> int:
    """Width of what one token passes through in a layer of experts."""
    each = fields.needed(*_EXPERT_SIZES)
    shared = fields.number("n_shared_experts") if fields.get("n_shared_experts") else 0
    wide = fields.get("shared_expert_intermediate_size")
    beside = fields.needed("shared_expert_intermediate_size") if wide else 0
    return each * (active + (shared or 0)) + beside
