from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.otlp import read
from tests.autotune.traffic.formats.files import json_document, json_lines

START_NS = 1_700_000_000_000_000_000


def span(after_ms: int = 0, *, name: str = "llm_request", **fields: Any) -> dict[str, Any]:
    return {
        "traceId": "t", "name": name, "startTimeUnixNano": str(START_NS + after_ms * 10**6),
        "endTimeUnixNano": str(START_NS + 10**9),
        "attributes": [
            {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "100"}},
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": 10}},
            {"key": "gen_ai.request.max_tokens", "value": {"intValue": "64"}},
            {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.25}},
            {"key": "gen_ai.request.id", "value": {"stringValue": "SECRET"}},
        ],
        **fields,
    }  # fmt: skip


def exported(*spans: object) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_of_vllm_are_requests(tmp_path: Path) -> None:
    path = json_lines(
        tmp_path,
        exported(span(500), span(0), span(0, status={"code": 2})),
        exported({"name": "POST /v1/completions"}, span(0, name="chat"), span(0, attributes=[])),
    )
    assert detect(path).name == "otlp"
    trace = read(path)
    assert trace.timestamps_s.tolist() == [0.0, 0.5]
    request = trace.requests[1]
    assert (request.input_length, request.output_length, request.max_tokens) == (100, 10, 64)
    assert (request.ttft_ms, request.e2e_ms) == (250.0, 500.0)
    notes = trace.notes
    assert (notes.failed, notes.not_requests, notes.without_tokens) == (1, 2, 1)
    assert notes.sentences()[0].startswith("Times were read as ns since 1970")


def test_without_vllm_spans_with_usage_are_requests(tmp_path: Path) -> None:
    attributes = [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "8"}},
        {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
    ]
    path = json_document(tmp_path, exported(span(name="chat m", attributes=attributes)))
    assert detect(path).name == "otlp"
    request = read(path).requests[0]
    assert (request.input_length, request.output_length, request.model) == (7, 8, "m")
    assert (request.ttft_ms, request.e2e_ms) == (None, 1000.0)


def test_no_requests_among_the_spans_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request with") as caught:
        read(json_document(tmp_path, exported({"name": "GET /health"})))
    assert caught.value.hint == "Rows that are no text requests, left out: 1."


def test_a_request_without_time_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"log\.jsonl:2: startTimeUnixNano: field required"):
        read(json_lines(tmp_path, exported(span()), exported(span(startTimeUnixNano=None))))
