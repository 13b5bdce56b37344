"""Which engines the simulated scheduler knows; see ``autotune.forecast.scheduling``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def forecast_obstacle(config: Any) -> str | None:
    """Return why engines of a ``VllmConfig`` cannot be forecast, None if they can."""
    return next(_obstacles(config), None)


def argument_obstacle(resolved: Mapping[str, Any]) -> str | None:
    """Return the same as far as an engine's resolved arguments tell, without its configuration.

    What of its model keeps it from being forecast is not among them.
    """
    return next(_of_arguments(resolved), None)


def _of_arguments(resolved: Mapping[str, Any]) -> Iterator[str]:
    for name in (*_PARALLEL, _INTERVAL):
        if (resolved.get(name) or 1) > 1:
            yield _MORE.format(name)
    if resolved.get(_ADAPTIVE):
        yield _SET.format(_ADAPTIVE)
    for name, words in _FEATURES.items():
        if resolved.get(name) is not None:
            yield _CHANGES.format(words)
    if resolved.get("enable_lora"):
        yield _CHANGES.format(_FEATURES["lora_config"])
    if (runner := resolved.get("runner", _AUTO)) not in (_AUTO, _GENERATE):
        yield _RUN_FOR.format(runner)


def _obstacles(config: Any) -> Iterator[str]:
    yield from _above_one(config.parallel_config, _PARALLEL)
    yield from _above_one(config.scheduler_config, (_INTERVAL,))
    if getattr(config.scheduler_config, _ADAPTIVE, False):
        yield _SET.format(_ADAPTIVE)
    for name, words in _FEATURES.items():
        if getattr(config, name, None) is not None:
            yield _CHANGES.format(words)
    yield from _of_the_model(config.model_config)


_INTERVAL = "prefill_schedule_interval"
_ADAPTIVE = "long_prefill_token_threshold_adaptive"
_AUTO, _GENERATE = "auto", "generate"
_MORE = "{} is more than 1"
_SET = "{} is set"
_CHANGES = "{} changes the schedule"
_RUN_FOR = "the model is run for {}"
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
            yield _MORE.format(name)


def _of_the_model(model: Any) -> Iterator[str]:
    """Yield what of a model keeps its requests from needing a block for so many tokens each."""
    if model.runner_type != _GENERATE:
        yield _RUN_FOR.format(model.runner_type)
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
