"""Whatever lies in a file, reading it ends with a trace or with one error."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.traffic.formats import FORMATS
from autotune.traffic.formats.base import NO_OPTIONS, ReadOptions
from autotune.traffic.formats.native import meta_path
from autotune.traffic.formats.rows import parse_row
from autotune.traffic.model import Trace
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.formats.logs import LOGS, changed

ROW = {
    "timestamp": 12.5, "input_length": 600, "output_length": 5, "hash_ids": [1, 2],
    "max_tokens": 9, "priority": -1, "cached_tokens": 0, "model": "llama",
}  # fmt: skip
GOOD = {
    "native": json.dumps(ROW).encode() + b"\n",
    "mooncake": json.dumps(ROW).encode() + b"\n",
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,374,44\n",
    "custom": b'{"prompt": "What is it?", "output_tokens": 7}\n',
    "bailian": b'{"chat_id":1,"timestamp":6,"input_length":2,"output_length":1,"hash_ids":[1]}\n',
    "sharegpt": b'[{"conversations": [{"from": "human", "value": "a"}, {"value": "b"}]}]\n',
    "openai-batch": b'{"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "a"}}\n',
    "litellm": b'{"startTime":"2026-11-30T08:15:00Z","prompt_tokens":1,"completion_tokens":2}\n',
    "langfuse": b'{"startTime":"2026-11-30T08:15:00Z","usageDetails":{"input":1,"output":2}}\n',
    "otlp": b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "llm_request"}]}]}]}\n',
    "guidellm": b'{"benchmarks": [{"requests": {"successful": [{"start_time": 1.7e9}]}}]}\n',
    "vllm-bench": b'{"input_lens": [1, 2], "output_lens": [3, 4], "start_times": [1.5, 0.5]}\n',
}
OPTIONS = ReadOptions(rate_per_s=5.0)
HEADED = ("azure", "burstgpt")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*ROW, "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def one_answer(read: Callable[[], Trace]) -> None:
    try:
        for request in read().requests:
            assert parse_row(request.to_line()) == request
    except UsageError as error:
        assert error.message.isprintable()
        assert len(error.message) < 600
        assert error.hint


def read_anyhow(content: bytes, name: str, *, meta: bytes | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        if meta is not None:
            meta_path(path).write_bytes(meta)
        timeless = name in FORMATS and "rate_per_s" in FORMATS[name].takes
        options = OPTIONS if timeless else NO_OPTIONS
        one_answer(lambda: load_trace(path, format=name, options=options))


@pytest.mark.parametrize("name", ["auto", *FORMATS])
@settings(max_examples=15)
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes(name: str, content: bytes) -> None:
    read_anyhow(content, name)


@pytest.mark.parametrize("name", [*FORMATS])
@settings(max_examples=25)
@given(data=st.data())
def test_good_bytes_with_a_splice(name: str, data: st.DataObject) -> None:
    good = GOOD[name] if name in HEADED else GOOD[name] * 2
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 9)))
    new = data.draw(
        st.binary(max_size=9) | st.sampled_from([b"-1", b"1e999", b"NaN", b"\n", b"["])
    )
    read_anyhow(good[:start] + new + good[end:], name)


@settings(max_examples=60)
@given(st.lists(JSON, min_size=1, max_size=3))
def test_arbitrary_json(rows: list[object]) -> None:
    read_anyhow("\n".join(json.dumps(row) for row in rows).encode(), "native")


@settings(max_examples=60)
@given(field=st.sampled_from([*ROW, "x"]), value=JSON)
def test_one_field_of_any_value(field: str, value: object) -> None:
    read_anyhow(json.dumps({**ROW, field: value}).encode(), "native")


@settings(max_examples=15)
@given(st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_description(meta: bytes) -> None:
    read_anyhow(GOOD["native"], "native", meta=meta)


ODD: tuple[object, ...] = (
    None, True, -1, 0, 1.5, 1e300, float("inf"), float("nan"), "", "x", "9" * 5000, [], {}, [[]],
    [None], {"a": None}, 10**30, "[1", "\ud800", "1e400", "٣",
)  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
@settings(max_examples=25)
@given(data=st.data(), odd=st.sampled_from(ODD))
def test_one_part_of_any_value(name: str, data: st.DataObject, odd: object) -> None:
    log = data.draw(st.sampled_from(LOGS[name]))
    case = data.draw(st.sampled_from([odd, *changed(log, odd)]))
    read_anyhow(json.dumps(case).encode(), name)
