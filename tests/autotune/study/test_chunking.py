from __future__ import annotations

from typing import Any

import pytest

from autotune.study.chunking import Chunking, ChunkingCode, chunking_of
from tests.autotune.traffic.examples import request, trace

TRAFFIC = trace(request(0.0, 100), request(1.0, 2048), request(2.0, 5000))


@pytest.mark.parametrize(
    ("arguments", "code", "chunk_tokens", "prompts_over"),
    [
        ({}, "unknown", None, None),
        ({"max_num_batched_tokens": "2k"}, "unknown", None, None),
        ({"max_num_batched_tokens": [2048]}, "unknown", None, None),
        ({"max_num_batched_tokens": -1}, "unknown", None, None),
        ({"max_num_batched_tokens": 2048}, "in_effect", 2048, 1),
        (
            {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": "1k"},
            "in_effect",
            2048,
            1,
        ),
        ({"max_num_batched_tokens": 2047}, "in_effect", 2047, 2),
        ({"max_num_batched_tokens": 5000}, "prompts_shorter", 5000, 0),
        ({"max_num_batched_tokens": 8192, "max_model_len": 8192}, "budget_holds_all", 8192, 0),
        ({"max_num_batched_tokens": 8191, "max_model_len": 8192}, "prompts_shorter", 8191, 0),
        ({"max_num_batched_tokens": 8192, "max_num_scheduled_tokens": 512}, "in_effect", 512, 2),
        (
            {"max_num_batched_tokens": 8192, "max_num_scheduled_tokens": None},
            "prompts_shorter",
            8192,
            0,
        ),
        (
            {"max_num_batched_tokens": 8192, "long_prefill_token_threshold": 1024},
            "in_effect",
            1024,
            2,
        ),
        (
            {"max_num_batched_tokens": 8192, "long_prefill_token_threshold": 0},
            "prompts_shorter",
            8192,
            0,
        ),
        ({"max_num_batched_tokens": 2048, "enable_chunked_prefill": False}, "off", 2048, 1),
        ({"max_num_batched_tokens": 2048, "enable_chunked_prefill": True}, "in_effect", 2048, 1),
    ],
)
def test_what_becomes_of_prompts(
    arguments: dict[str, Any],
    code: ChunkingCode,
    chunk_tokens: int | None,
    prompts_over: int | None,
) -> None:
    assert chunking_of(TRAFFIC, arguments) == Chunking(code, chunk_tokens, prompts_over)
