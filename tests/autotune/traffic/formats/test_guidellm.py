from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.guidellm import read
from tests.autotune.traffic.formats.files import json_document

START_S = 1_700_000_000.0
DONE = {
    "request_start_time": START_S + 1.5, "request_end_time": START_S + 3, "prompt_tokens": 128,
    "output_tokens": 64, "time_to_first_token_ms": 33.5, "output": "SECRET",
    "input_metrics": {"cached_tokens": 16},
}  # fmt: skip
CUT = {
    "info": {"timings": {"request_start": START_S + 2}},
    "input_metrics": {"text_tokens": 99}, "output_metrics": {"total_tokens": 7},
}  # fmt: skip


def report(*benchmarks: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"guidellm_version": "0.6.0"}, "args": {}, "benchmarks": list(benchmarks)}


def benchmark(total: int = 0, **requests: list[dict[str, Any]]) -> dict[str, Any]:
    return {"request_totals": {"total": total}, "requests": requests}


@pytest.mark.parametrize("indent", [0, 2])
def test_requests_of_every_status_are_read_or_counted(tmp_path: Path, indent: int) -> None:
    value = report(benchmark(successful=[DONE], incomplete=[CUT], errored=[{"error": "SECRET"}]))
    path = json_document(tmp_path, value, indent=indent)
    assert detect(path).name == "guidellm"
    trace = read(path)
    assert [
        (r.timestamp_ms, r.input_length, r.output_length, r.outcome) for r in trace.requests
    ] == [(0.0, 128, 64, None), (500.0, 99, 7, "cancelled")]
    first = trace.requests[0]
    assert (first.ttft_ms, first.e2e_ms, first.cached_tokens) == (33.5, 1500.0, 16)
    assert trace.notes.failed == 1
    assert len(trace.notes.remarks) == 1


def test_several_benchmarks_and_samples_are_told(tmp_path: Path) -> None:
    later = {**DONE, "request_start_time": START_S + 100}
    value = report(benchmark(5, successful=[DONE]), benchmark(1, successful=[later]))
    trace = read(json_document(tmp_path, value))
    assert trace.timestamps_s.tolist() == [0.0, 98.5]
    assert "has 2 benchmarks, read one after the other" in trace.notes.remarks[1]
    assert "has 2 of its 6 requests" in trace.notes.remarks[2]


@pytest.mark.parametrize("value", [report(), report(benchmark(7)), report({"requests": None})])
def test_a_report_without_requests_says_what_is_needed(
    tmp_path: Path, value: dict[str, Any]
) -> None:
    path = json_document(tmp_path, value)
    assert detect(path).name == "guidellm"
    with pytest.raises(TraceError, match="has no requests, only figures") as caught:
        read(path)
    assert "every request" in caught.value.hint


def test_a_request_without_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="request_start_time: field required"):
        read(json_document(tmp_path, report(benchmark(successful=[{"prompt_tokens": 1}]))))
