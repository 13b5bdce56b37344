"""Spans of OpenTelemetry in OTLP's JSON, as the collector's file exporter writes them.

vLLM with ``--otlp-traces-endpoint`` makes a span ``llm_request`` of each request, which starts at
its arrival. Spans of other programs count as requests where there is none of these: those with
``gen_ai.usage`` of both prompt and output. Source: OTLP 1.x, ``opentelemetry/proto/trace``; vLLM,
``vllm/tracing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import Reader, parsed
from autotune.traffic.formats.clock import Clock
from autotune.traffic.formats.documents import Row, as_row, json_values
from autotune.traffic.formats.fields import (
    elapsed_ms,
    first_of,
    objects_in,
    optional_count,
    optional_text,
    positive_ms,
    required,
)
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.model import Trace

_SPAN = "llm_request"
_PROMPT = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
_OUTPUT = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
_MODEL = ("gen_ai.response.model", "gen_ai.request.model")
_VALUES = ("intValue", "doubleValue", "stringValue", "boolValue")
_START, _END = "startTimeUnixNano", "endTimeUnixNano"
_ERRORS = (2, "2", "STATUS_CODE_ERROR")


@dataclass(frozen=True, slots=True)
class _Span:
    is_vllm: bool
    found: Found


def read(path: Path) -> Trace:
    """Read spans; failed ones and those that are no requests are counted.

    Raises:
        TraceError: the file is no export of spans, or a request has no time.
    """
    clock = Clock()

    def span(value: object) -> _Span:
        row = as_row(value)
        attributes = _attributes(row)
        is_vllm = row.get("name") == _SPAN
        return _Span(is_vllm, _found(row, attributes, clock))

    spans = [each for _, each in parsed(path, _spans(path), span, kind="spans")]
    only_vllm = any(each.is_vllm for each in spans)
    found = [
        each.found if each.is_vllm or not only_vllm else LeftOut.NOT_REQUESTS for each in spans
    ]
    return assembled(path, found, remarks=(clock.remark(),), is_clock_time=True)


def _found(row: Row, attributes: Row, clock: Clock) -> Found:
    prompt, output = optional_count(attributes, *_PROMPT), optional_count(attributes, *_OUTPUT)
    if row.get("name") != _SPAN and (prompt is None or output is None):
        return LeftOut.NOT_REQUESTS
    status = row.get("status")
    if isinstance(status, dict) and status.get("code") in _ERRORS:
        return LeftOut.FAILED
    arrival_ns = clock.ns(_START, required(row, _START, "a span has the time of its start"))
    return request_or_left_out(
        Recorded(
            arrival_ns=arrival_ns,
            input_length=prompt or 0,
            output_length=output or 0,
            max_tokens=optional_count(attributes, "gen_ai.request.max_tokens") or None,
            cached_tokens=optional_count(attributes, *_CACHED),
            model=optional_text(attributes, *_MODEL),
            ttft_ms=_ms(attributes, "gen_ai.latency.time_to_first_token"),
            e2e_ms=_ms(attributes, "gen_ai.latency.e2e") or elapsed_ms(arrival_ns, row, _END),
        )
    )


def _spans(path: Path) -> Iterator[tuple[int, object]]:
    for line, value in json_values(path):
        documents = [value] if isinstance(value, dict) else []
        resources = [
            each for row in documents for each in objects_in(first_of(row, *_RESOURCES)[1])
        ]
        scopes = [each for row in resources for each in objects_in(first_of(row, *_SCOPES)[1])]
        for scope in scopes:
            yield from ((line, span) for span in objects_in(scope.get("spans")))


_RESOURCES = ("resourceSpans", "resource_spans")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")


def _attributes(row: Row) -> Row:
    return {
        str(each.get("key")): next((value[name] for name in _VALUES if name in value), None)
        for each in objects_in(row.get("attributes"))
        if isinstance(value := each.get("value"), dict)
    }


def _ms(attributes: Row, name: str) -> float | None:
    """Return a time that a span has in seconds."""
    return positive_ms(attributes.get(name), per_unit=1e3)


OTLP = Reader(
    name="otlp",
    summary="OTLP's JSON with spans `llm_request`",
    recognises=lambda head: bool({*_RESOURCES} & outline(head).keys),
    read=read,
)
