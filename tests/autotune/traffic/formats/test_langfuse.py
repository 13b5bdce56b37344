from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.langfuse import read
from tests.autotune.traffic.formats.files import Row, json_document, json_lines, text_file

CAMEL: Row = {
    "id": "x", "traceId": "t", "type": "GENERATION", "startTime": "2024-05-29T13:46:19.963Z",
    "endTime": "2024-05-29T13:46:21.963Z", "completionStartTime": "2024-05-29T13:46:20.063Z",
    "model": "m", "modelParameters": {"max_tokens": "500"}, "input": None, "output": None,
    "usageDetails": {"input": 100, "output": 10, "total": 110}, "level": "DEFAULT",
}  # fmt: skip
SNAKE: Row = {
    "id": "x", "trace_id": "t", "type": "GENERATION", "start_time": "2024-05-29 13:46:19.963000",
    "end_time": "2024-05-29 13:46:21.963000",
    "completion_start_time": "2024-05-29 13:46:20.063000",
    "provided_model_name": "m", "model_parameters": '{"max_tokens": 500}', "input": "",
    "usage_details": {"input": 100, "output": 10, "total": 110}, "level": "DEFAULT",
}  # fmt: skip


@pytest.mark.parametrize("row", [CAMEL, SNAKE])
def test_both_spellings_are_read(tmp_path: Path, row: Row) -> None:
    path = json_lines(
        tmp_path, row, {**row, "type": "SPAN"}, {**row, "level": "ERROR"}, {**row, "type": None}
    )
    assert detect(path).name == "langfuse"
    trace = read(path)
    request = trace.requests[0]
    assert (request.input_length, request.output_length, request.max_tokens) == (100, 10, 500)
    assert request.ttft_ms == pytest.approx(100.0)
    assert (request.e2e_ms, request.model) == (2000.0, "m")
    assert trace.meta.captured_at == "2024-05-29T13:46:19.963000+00:00"
    assert (trace.meta.requests, trace.notes.not_requests, trace.notes.failed) == (2, 1, 1)


@pytest.mark.parametrize("wrapper", ["data", "observations"])
def test_a_page_of_the_interface_is_read(tmp_path: Path, wrapper: str) -> None:
    path = json_document(tmp_path, {"id": "t", wrapper: [CAMEL], "meta": {"page": 1}})
    assert detect(path).name == "langfuse"
    assert read(path).meta.requests == 1


def test_a_table_is_read(tmp_path: Path) -> None:
    path = text_file(
        tmp_path,
        "id,trace_id,type,start_time,usage_details",
        'x,t,GENERATION,2024-05-29 13:46:19.963000,"{""input"": 7, ""output"": 8}"',
    )
    assert detect(path).name == "langfuse"
    assert read(path).requests[0].input_length == 7


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: {"messages": m}])
def test_texts_tell_prefixes(tmp_path: Path, wrap: object) -> None:
    assert callable(wrap)
    rows = [
        {**CAMEL, "input": wrap([{"role": "user", "content": "x" * 400 + end * 100}])}
        for end in "ab"
    ]
    one, other = read(json_lines(tmp_path, *rows)).requests
    assert one.hash_ids[:4] == other.hash_ids[:4]
    assert one.hash_ids != other.hash_ids


@pytest.mark.parametrize("limit", [None, "SECRET", 0, -1, True, {}])
def test_a_limit_that_is_none_is_none(tmp_path: Path, limit: object) -> None:
    row = {**CAMEL, "modelParameters": {"max_tokens": limit}}
    assert read(json_lines(tmp_path, row)).requests[0].max_tokens is None


def test_a_row_without_time_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"log\.jsonl:2: startTime: field required"):
        read(json_lines(tmp_path, CAMEL, {**CAMEL, "startTime": None}))
