from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.litellm import read
from autotune.traffic.model import Trace
from tests.autotune.traffic.formats.files import Row, json_document, json_lines, text_file


def row(**fields: object) -> Row:
    return {
        "request_id": "a", "call_type": "acompletion", "api_key": "sk-SECRET", "spend": 0.1,
        "prompt_tokens": 100, "completion_tokens": 20, "model": "openai/m", "model_group": "m",
        "startTime": "2026-11-30T08:15:02.123000Z", "endTime": "2026-11-30T08:15:04.123Z",
        "completionStartTime": "2026-11-30T08:15:02.523Z", "messages": {}, "response": {},
        "metadata": {}, "cache_hit": "False", "status": "success", **fields,
    }  # fmt: skip


ROWS = (
    row(),
    row(call_type="aembedding", completion_tokens=0),
    row(status="failure"),
    row(metadata={"status": "failure"}, status=None),
    row(cache_hit="True"),
    row(completion_tokens=0),
    row(startTime="2026-11-30 08:15:00", endTime="2026-11-30 08:15:01"),
)


def check(trace: Trace) -> None:
    assert trace.timestamps_s.tolist() == [0.0, 2.123]
    last = trace.requests[1]
    assert (last.input_length, last.output_length, last.model) == (100, 20, "m")
    assert (last.ttft_ms, last.e2e_ms) == (400.0, 2000.0)
    assert trace.meta.captured_at == "2026-11-30T08:15:00+00:00"
    assert trace.meta.prefixes == "unknown"
    notes = trace.notes
    assert (notes.failed, notes.not_requests, notes.from_cache, notes.without_tokens) == (
        2, 1, 1, 1,
    )  # fmt: skip
    assert notes.reordered == 1
    assert "without a zone, so UTC (1)" in notes.sentences()[0]


def test_a_list_is_read(tmp_path: Path) -> None:
    path = json_document(tmp_path, ROWS)
    assert detect(path).name == "litellm"
    check(read(path))


def test_a_page_of_the_interface_is_read(tmp_path: Path) -> None:
    path = json_document(tmp_path, {"data": ROWS, "total": 7})
    assert detect(path).name == "litellm"
    check(read(path))


def test_json_lines_are_read(tmp_path: Path) -> None:
    path = json_lines(tmp_path, *ROWS)
    assert detect(path).name == "litellm"
    check(read(path))


def test_a_table_is_read(tmp_path: Path) -> None:
    def cell(value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        return '"' + ("" if value is None else text).replace('"', '""') + '"'

    lines = [",".join(map(cell, each.values())) for each in ROWS]
    path = text_file(tmp_path, ",".join(row()), *lines)
    assert detect(path).name == "litellm"
    check(read(path))


def test_texts_tell_prefixes_and_the_usage_tells_lengths(tmp_path: Path) -> None:
    texts = [[{"role": "user", "content": "x" * 400 + end * 200}] for end in "ab"]
    details = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 48}}}
    path = json_lines(tmp_path, *(row(messages=each, metadata=details) for each in texts))
    trace = read(path)
    assert trace.meta.prefixes == "estimated"
    assert trace.meta.block_size == 16
    one, other = (request.hash_ids for request in trace.requests)
    assert len(one) == len(other) == 7
    assert one[:4] == other[:4]
    assert one[-1] != other[-1]
    assert trace.requests[0].cached_tokens == 48
    assert trace.requests[0].estimated is None


def test_an_answer_that_was_not_streamed_has_no_first_token(tmp_path: Path) -> None:
    end = "2026-11-30T08:15:04.123Z"
    request = read(json_lines(tmp_path, row(completionStartTime=end))).requests[0]
    assert (request.ttft_ms, request.e2e_ms) == (None, 2000.0)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"startTime": None}, "startTime: field required"),
        ({"startTime": "SECRET"}, "startTime: is no time"),
        ({"prompt_tokens": "SECRET"}, "prompt_tokens: is a text of 6 characters"),
        ({"completion_tokens": None}, "completion_tokens: field required"),
    ],
)
def test_a_bad_row_is_named_and_not_quoted(tmp_path: Path, bad: Row, reason: str) -> None:
    with pytest.raises(TraceError, match=rf"log\.jsonl:2: {reason}") as caught:
        read(json_lines(tmp_path, row(), row(**bad)))
    assert "SECRET" not in caught.value.message + caught.value.hint
