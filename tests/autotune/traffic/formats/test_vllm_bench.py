from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TraceError, UsageError
from autotune.traffic.formats import detect
from autotune.traffic.formats.vllm_bench import read
from tests.autotune.traffic.formats.files import AT_FIVE_PER_S, json_document, json_lines

FIGURES = {
    "date": "20261130-081500", "backend": "vllm", "model_id": "m", "num_prompts": 4,
    "request_rate": 5.0, "completed": 3, "total_input_tokens": 60, "request_throughput": 4.8,
}  # fmt: skip
DETAILS: dict[str, Any] = {
    "input_lens": [10, 20, 30, 40], "output_lens": [1, 2, 3, 0], "ttfts": [0.1, 0.2, 0.0, 0.0],
    "itls": [[], [0.1], [], []], "latencies": [0.3, 0.4, 0.5, 0.0],
    "start_times": [1234.5, 1235.25, 1234.0, 0.0], "generated_texts": ["SECRET"] * 4,
    "errors": ["", "", "", "Traceback: SECRET"],
}  # fmt: skip


def test_details_are_requests(tmp_path: Path) -> None:
    path = json_lines(tmp_path, {**FIGURES, **DETAILS}, name="result.json")
    assert detect(path).name == "vllm-bench"
    trace = read(path)
    assert [
        (r.timestamp_ms, r.input_length, r.output_length, r.ttft_ms, r.e2e_ms)
        for r in trace.requests
    ] == [
        (0.0, 30, 3, None, 500.0),
        (500.0, 10, 1, 100.0, 300.0),
        (1250.0, 20, 2, 200.0, 400.0),
    ]
    assert (trace.notes.failed, trace.notes.reordered) == (1, 1)
    assert trace.meta.captured_at is None


def test_figures_alone_are_no_trace(tmp_path: Path) -> None:
    path = json_document(tmp_path, FIGURES)
    assert detect(path).name == "vllm-bench"
    with pytest.raises(TraceError, match="the figures of a benchmark and no requests") as caught:
        read(path)
    assert "--save-result --save-detailed" in caught.value.hint


def test_results_of_an_older_vllm_have_no_times(tmp_path: Path) -> None:
    older = {name: values for name, values in DETAILS.items() if name != "start_times"}
    path = json_document(tmp_path, older)
    with pytest.raises(UsageError, match="results of an older vLLM have no times"):
        read(path)
    assert read(path, AT_FIVE_PER_S).meta.requests == 3


def test_several_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has 2 results, each with a clock of its own"):
        read(json_lines(tmp_path, DETAILS, DETAILS))


def test_lists_must_fit(tmp_path: Path) -> None:
    value = {**DETAILS, "output_lens": [1]}
    with pytest.raises(
        TraceError, match="lists of different lengths: input_lens 4, output_lens 1"
    ):
        read(json_document(tmp_path, value))
