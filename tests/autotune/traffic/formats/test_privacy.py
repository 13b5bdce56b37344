"""No prompt, answer or key of a log reaches a trace, a note, an error or a traceback."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.traffic.formats import FORMATS
from autotune.traffic.formats.base import ReadOptions
from autotune.traffic.trace import load_trace
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


def told(path: Path, name: str) -> str:
    """Return all that reading a file says and writes, the traceback of an error too."""
    try:
        trace = load_trace(path, format=name, options=options_of(name))
    except UsageError as error:
        return "".join([*traceback.format_exception(error), error.message, error.hint])
    written = b"".join(trace.lines()).decode() + json.dumps(trace.meta.to_json())
    return written + "\n".join(trace.notes.sentences())


@pytest.mark.parametrize("name", LOGS)
def test_what_is_read_holds_no_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(row) + "\n" for row in LOGS[name]))
    assert '"input_length":' in told(path, name)
    assert WORDS not in told(path, name)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("planted", [WORDS, {"a": WORDS}])
def test_no_fault_quotes_what_it_found(tmp_path: Path, name: str, planted: object) -> None:
    path = tmp_path / "log"
    cases = list(changed(LOGS[name][0], planted))
    assert cases
    for case in cases:
        path.write_text(json.dumps(case) + "\n")
        assert WORDS not in told(path, name), case


@pytest.mark.parametrize("name", [*LOGS, "auto"])
@pytest.mark.parametrize(
    "content",
    [f'{{"prompt": "{WORDS}', f'[{{"prompt": {WORDS}}}]', WORDS, f'{{"a": "{WORDS}"}}',
     f'{WORDS},b\n1,"{WORDS}', f'[["{WORDS}"]]', f'{{"{WORDS}": 1}}'],
)  # fmt: skip
def test_what_is_no_log_is_not_quoted(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / "log"
    path.write_text(content)
    names = LOGS if name == "auto" else {name: None}
    for each in names:
        found = told(path, each)
        # A misspelt field of our own rows is named, which is how it can be corrected.
        assert WORDS not in found or (each == "native" and f"'{WORDS}'" in found)
