"""A log of each form with planted words, and what becomes of it with one part replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.traffic.formats import FORMATS
from autotune.traffic.formats.base import ReadOptions
from tests.autotune.traffic.formats.test_guidellm import CUT, DONE, benchmark, report
from tests.autotune.traffic.formats.test_langfuse import CAMEL, SNAKE
from tests.autotune.traffic.formats.test_litellm import row as litellm_row
from tests.autotune.traffic.formats.test_openai_batch import answered, asked
from tests.autotune.traffic.formats.test_otlp import exported, span
from tests.autotune.traffic.formats.test_vllm_bench import DETAILS

WORDS = "SECRET-8f3a"
CHAT = [{"role": "user", "content": f"{WORDS} {WORDS} and more words of a prompt " * 9}]
LOGS: dict[str, list[Any]] = {
    "native": [{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1]}],
    "custom": [{"prompt": f"{WORDS} prompt", "output_tokens": 5, "key": WORDS}],
    "sharegpt": [{"id": WORDS, "conversations": [{"value": WORDS}, {"value": WORDS}]}],
    "bailian": [{"chat_id": 1, "timestamp": 6, "input_length": 2, "output_length": 1,
                 "hash_ids": [1], "type": "text"}],
    "openai-batch": [asked(WORDS), {**answered(WORDS), "id": WORDS}],
    "litellm": [litellm_row(messages=CHAT, response={"text": WORDS}, api_key=WORDS)],
    "langfuse": [{**CAMEL, "input": CHAT, "output": WORDS}, {**SNAKE, "input": WORDS}],
    "otlp": [exported(span())],
    "guidellm": [report(benchmark(successful=[{**DONE, "args": WORDS}], incomplete=[CUT]))],
    "vllm-bench": [DETAILS],
}  # fmt: skip
MODEL_NAMES = ("model", "model_group", "provided_model_name")
"""Kept, as the documents say: ``trace redact --drop-models`` removes them."""


def options_of(name: str) -> ReadOptions:
    return ReadOptions(rate_per_s=5.0) if "rate_per_s" in FORMATS[name].takes else ReadOptions()


def changed(value: Any, new: object) -> Iterator[Any]:
    """Yield ``value`` with one part at a time replaced."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in MODEL_NAMES:
                yield {**value, key: new}
                yield from ({**value, key: each} for each in changed(inner, new))
    elif isinstance(value, list):
        for place, inner in enumerate(value[:2]):
            yield [*value[:place], new, *value[place + 1 :]]
            rest = value[place + 1 :]
            yield from ([*value[:place], each, *rest] for each in changed(inner, new))
