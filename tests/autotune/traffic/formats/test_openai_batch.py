from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.openai_batch import read
from tests.autotune.traffic.formats.files import AT_FIVE_PER_S, Row, json_lines


def asked(name: str, *, url: str = "/v1/chat/completions", **body: object) -> Row:
    messages = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": name}]
    return {
        "custom_id": name, "method": "POST", "url": url,
        "body": {"model": "m", "messages": messages, "max_tokens": 100, **body},
    }  # fmt: skip


def answered(name: str, *, status: int = 200, error: object = None) -> Row:
    usage = {"prompt_tokens": 120, "completion_tokens": 30}
    details = {"prompt_tokens_details": {"cached_tokens": 64}}
    body = {"model": "m-1", "usage": {**usage, **details}}
    response = {"status_code": status, "body": body}
    return {"id": "b", "custom_id": name, "response": response, "error": error}


def test_without_answers_outputs_are_as_long_as_allowed(tmp_path: Path) -> None:
    path = json_lines(
        tmp_path,
        asked("one"),
        asked("two", max_tokens=None, max_completion_tokens=7),
        asked("three", max_tokens=None),
        asked("four", url="/v1/embeddings"),
    )
    assert detect(path).name == "openai-batch"
    trace = read(path, AT_FIVE_PER_S)
    assert [(r.output_length, r.max_tokens, r.model, r.estimated) for r in trace.requests] == [
        (100, 100, "m", True), (7, 7, "m", True),
    ]  # fmt: skip
    assert trace.requests[0].hash_ids[:5] == trace.requests[1].hash_ids[:5]
    assert trace.meta.prefixes == "estimated"
    assert trace.notes.not_requests == 1
    assert trace.notes.without_tokens == 1
    said = " ".join(trace.notes.sentences())
    assert "as long as max_tokens allows: 2; --answers FILE" in said
    assert "without max_tokens and left out: 1; --answers FILE" in said
    assert trace.meta.source.endswith("outputs as long as max_tokens")


def test_a_batch_of_unknown_outputs_alone_is_told_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read(json_lines(tmp_path, asked("one", max_tokens=None)), AT_FIVE_PER_S)
    assert "no request with prompt and output tokens" in caught.value.message
    assert "without max_tokens and left out: 1; --answers FILE" in caught.value.hint


def test_answers_tell_the_lengths(tmp_path: Path) -> None:
    answers = json_lines(
        tmp_path, answered("one"), answered("two", status=500), answered("three", error={"c": 1}),
        name="answers.jsonl",
    )  # fmt: skip
    path = json_lines(tmp_path, asked("one"), asked("two"), asked("three"), asked("four"))
    trace = read(path, replace(AT_FIVE_PER_S, answers=answers))
    request = trace.requests[0]
    assert (request.input_length, request.output_length) == (120, 30)
    assert (request.cached_tokens, request.max_tokens, request.model) == (64, 100, "m")
    assert request.estimated is None
    assert len(request.hash_ids) == 8
    assert trace.notes.failed == 3


def test_answers_alone_are_lengths_alone(tmp_path: Path) -> None:
    path = json_lines(tmp_path, answered("one"), answered("two", status=429))
    assert detect(path).name == "openai-batch"
    trace = read(path, AT_FIVE_PER_S)
    assert trace.meta.prefixes == "unknown"
    assert (trace.requests[0].input_length, trace.notes.failed) == (120, 1)


@pytest.mark.parametrize(
    "row", [{"custom_id": "SECRET"}, {"body": "SECRET"}, {"custom_id": 5, "response": None}]
)
def test_what_is_neither_is_refused(tmp_path: Path, row: Row) -> None:
    answers = json_lines(tmp_path, row, name="answers.jsonl")
    with pytest.raises(TraceError, match="field required") as caught:
        read(json_lines(tmp_path, asked("one")), replace(AT_FIVE_PER_S, answers=answers))
    assert "SECRET" not in caught.value.message + caught.value.hint
