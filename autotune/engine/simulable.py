"""Which engines the simulated scheduler knows; see ``autotune.forecast.scheduling``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def forecast_obstacle(config: Any) -> str | None:
    """Return why engines of a ``VllmConfig`` cannot be forecast, None if they can."""
    return next(_obstacles(config), None)


def _obstacles(config: Any) -> Iterator[str]:
    yield from _above_one(config.parallel_config, _PARALLEL)
    yield from _above_one(config.scheduler_config, ("prefill_schedule_interval",))
    if getattr(config.scheduler_config, "long_prefill_token_threshold_adaptive", False):
        yield "long_prefill_token_threshold_adaptive is set"
    for name, words in _FEATURES.items():
        if getattr(config, name, None) is not None:
            yield f"{words} changes the schedule"
    yield from _of_the_model(config.model_config)


_PARALLEL = (
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
)
_FEATURES = {
    "speculative_config": "speculative decoding",
    "lora_config": "LoRA",
    "kv_transfer_config": "a KV connector",
    "ec_transfer_config": "an encoder cache connector",
}


def _above_one(part: Any, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if (getattr(part, name, None) or 1) > 1:
            yield f"{name} is more than 1"


def _of_the_model(model: Any) -> Iterator[str]:
    """Yield what of a model keeps its requests from needing a block for so many tokens each."""
    if model.runner_type != "generate":
        yield f"the model is run for {model.runner_type}"
    if model.is_encoder_decoder:
        yield "the model has an encoder"
    if model.is_hybrid or model.is_attention_free:
        yield "the model has layers with a state instead of a KV cache"
    windows = {
        "a sliding window": model.get_sliding_window(),
        "chunked attention": getattr(model, "attention_chunk_size", None),
    }
    for words, tokens in windows.items():
        # Lists, of some models, have one for each layer.
        shortest = min(tokens) if isinstance(tokens, list | tuple) else tokens
        if shortest is not None and shortest < model.max_model_len:
            yield f"the model has layers with {words} of {shortest} tokens"
