"""Files of OpenAI's batch interface: requests, their answers, or both joined.

Requests are ``{"custom_id", "method", "url", "body"}`` and have neither times nor outputs; answers
are ``{"custom_id", "response": {"status_code", "body": {"usage": …}}, "error"}`` and have lengths,
but no times of arrival either. ``vllm run-batch`` reads and writes the same.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from autotune.traffic.capture.asked import api_of, read_asked
from autotune.traffic.capture.blocks import BLOCK_SIZE
from autotune.traffic.formats.arrivals import made_source, with_made_arrivals
from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import (
    NO_OPTIONS,
    TIMELESS,
    BadLine,
    Reader,
    ReadOptions,
    parsed,
)
from autotune.traffic.formats.documents import Row, as_row, table_rows
from autotune.traffic.formats.fields import (
    object_of,
    optional_count,
    optional_text,
)
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.formats.texts import Texts
from autotune.traffic.model import Trace

_HINT = (
    'a line is {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}'
)
_PROMPT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")


def read(path: Path, options: ReadOptions = NO_OPTIONS) -> Trace:
    """Read a batch; times are made, and without answers outputs are as long as allowed.

    Requests without an answer among answers failed, and those without ``max_tokens`` where there
    are no answers are left out as rows without output tokens.

    Raises:
        TraceError: a line is no request and no answer.
        UsageError: no rate is given, or a tokenizer that cannot be loaded.
    """
    texts = Texts(options.tokenizer)
    answers = None if options.answers is None else _answers(options.answers)
    limited = unlimited = 0

    def request(value: object) -> Found:
        nonlocal limited, unlimited
        row = as_row(value)
        if "response" in row or "body" not in row:
            return _answered(row)
        asked = _asked(row, texts)
        if not isinstance(asked, Recorded):
            return asked
        if answers is None:
            limited += asked.max_tokens is not None
            unlimited += asked.max_tokens is None
            output = asked.max_tokens or 0
            return request_or_left_out(replace(asked, output_length=output, estimated=True))
        answer = answers.get(_custom_id(row), LeftOut.FAILED)
        if not isinstance(answer, Recorded):
            return answer
        return replace(answer, text=asked.text, max_tokens=asked.max_tokens, model=asked.model)

    found = [each for _, each in parsed(path, table_rows(path), request)]
    made, remark = with_made_arrivals(path, found, options, why="a batch has")
    remarks, details = [remark], [made_source(options)]
    if any(isinstance(each, Recorded) and each.estimated for each in found):
        remarks.append(texts.remark())
        details.append(texts.source())
    if limited:
        remarks.append(
            f"Outputs taken to be as long as max_tokens allows: {limited}; "
            "--answers FILE tells their lengths."
        )
        details.append("outputs as long as max_tokens")
    lacking = []
    if unlimited:
        lacking.append(
            f"Requests of unknown output, without max_tokens and left out: {unlimited}; "
            "--answers FILE tells their lengths."
        )
    return assembled(
        path, made, remarks=remarks, lacking=lacking, details=details, block_size=BLOCK_SIZE
    )


def _asked(row: Row, texts: Texts) -> Found:
    """Return a request of unknown output."""
    body = object_of(row.get("body"))
    api = api_of("POST", optional_text(row, "url") or "")
    asked = None if api is None else read_asked(api, json.dumps(body).encode())
    if asked is None or len(asked.prompts) != 1:
        return LeftOut.NOT_REQUESTS
    text = texts.prompt(asked.prompts[0])
    return Recorded(
        arrival_ns=None,
        input_length=text.tokens,
        output_length=0,
        text=text,
        estimated=text.estimated,
        max_tokens=asked.max_tokens,
        model=asked.model,
    )


def _answers(path: Path) -> dict[str, Found]:
    def answer(value: object) -> tuple[str, Found]:
        row = as_row(value)
        return _custom_id(row), _answered(row)

    return dict(each for _, each in parsed(path, table_rows(path), answer))


def _answered(row: Row) -> Found:
    """Return a request as its answer counts it."""
    if "response" not in row and "error" not in row:
        raise BadLine("body: field required", hint=_HINT)
    response = object_of(row.get("response"))
    body = object_of(response.get("body"))
    if row.get("error") or response.get("status_code") not in (None, 200) or not body:
        return LeftOut.FAILED
    usage = object_of(body.get("usage"))
    details = object_of(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    return request_or_left_out(
        Recorded(
            arrival_ns=None,
            input_length=optional_count(usage, *_PROMPT) or 0,
            output_length=optional_count(usage, *_OUTPUT) or 0,
            cached_tokens=optional_count(details, "cached_tokens"),
            model=optional_text(body, "model"),
        )
    )


def _custom_id(row: Row) -> str:
    name = optional_text(row, "custom_id")
    if name is None:
        raise BadLine("custom_id: field required", hint=_HINT)
    return name


BATCH = Reader(
    name="openai-batch",
    summary="JSON Lines of OpenAI's batches, with custom_id",
    recognises=lambda head: "custom_id" in outline(head).keys,
    read=read,
    takes=TIMELESS | {"tokenizer", "answers"},
    read_as=read,
)
