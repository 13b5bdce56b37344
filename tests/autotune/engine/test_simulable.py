from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.engine.simulable import forecast_obstacle

PARALLEL = dict.fromkeys(("pipeline_parallel_size", "data_parallel_size"), 1)
SCHEDULER = {"prefill_schedule_interval": 1, "long_prefill_token_threshold_adaptive": False}
MODEL = {
    "runner_type": "generate",
    "is_encoder_decoder": False,
    "is_hybrid": False,
    "is_attention_free": False,
    "attention_chunk_size": None,
    "max_model_len": 8192,
}


def config(
    *,
    parallel: Mapping[str, Any] | None = None,
    scheduler: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    window: object = None,
    **features: object,
) -> SimpleNamespace:
    """Return what is looked at of a ``VllmConfig``, of a plain engine unless said."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**PARALLEL, **(parallel or {})}),
        scheduler_config=SimpleNamespace(**{**SCHEDULER, **(scheduler or {})}),
        model_config=SimpleNamespace(
            **{**MODEL, **(model or {})}, get_sliding_window=lambda: window
        ),
        speculative_config=None,
        kv_transfer_config=None,
        **features,
    )


def test_a_plain_engine_is_known() -> None:
    assert forecast_obstacle(config()) is None
    assert forecast_obstacle(config(lora_config=None)) is None


def test_a_window_as_long_as_any_request_changes_nothing() -> None:
    assert forecast_obstacle(config(window=8192)) is None
    assert forecast_obstacle(config(model={"attention_chunk_size": 8192})) is None


def test_what_an_older_vllm_does_not_have_is_no_obstacle() -> None:
    old = config()
    del old.scheduler_config.prefill_schedule_interval
    del old.scheduler_config.long_prefill_token_threshold_adaptive
    del old.model_config.attention_chunk_size
    assert forecast_obstacle(old) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallel": {"pipeline_parallel_size": 2}}, "pipeline_parallel_size is more than 1"),
        ({"parallel": {"data_parallel_size": 8}}, "data_parallel_size is more than 1"),
        (
            {"parallel": {"decode_context_parallel_size": 2}},
            "decode_context_parallel_size is more than 1",
        ),
        (
            {"scheduler": {"prefill_schedule_interval": 4}},
            "prefill_schedule_interval is more than 1",
        ),
        (
            {"scheduler": {"long_prefill_token_threshold_adaptive": True}},
            "long_prefill_token_threshold_adaptive is set",
        ),
        ({"lora_config": object()}, "LoRA changes the schedule"),
        ({"ec_transfer_config": object()}, "an encoder cache connector changes the schedule"),
        ({"model": {"runner_type": "pooling"}}, "the model is run for pooling"),
        ({"model": {"is_encoder_decoder": True}}, "the model has an encoder"),
        (
            {"model": {"is_hybrid": True}},
            "the model has layers with a state instead of a KV cache",
        ),
        ({"window": 4096}, "the model has layers with a sliding window of 4096 tokens"),
        ({"window": [9000, 512]}, "the model has layers with a sliding window of 512 tokens"),
        (
            {"model": {"attention_chunk_size": 2048}},
            "the model has layers with chunked attention of 2048 tokens",
        ),
    ],
)
def test_what_a_simulation_does_not_know(changes: dict[str, Any], words: str) -> None:
    assert forecast_obstacle(config(**changes)) == words
