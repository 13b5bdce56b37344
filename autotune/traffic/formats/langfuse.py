"""Langfuse's observations, as a JSON list, JSON Lines or CSV, in the spellings of its exports.

Those of the interface are ``startTime``, ``completionStartTime``, ``usageDetails`` …, those of the
export to blob storage ``start_time``, ``completion_start_time``, ``usage_details`` … Only
observations of type GENERATION are requests. Source: Langfuse, "Blob storage export field
reference" and the interface's "Observations".
"""

from __future__ import annotations

from pathlib import Path

from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import NO_OPTIONS, BadLine, Reader, ReadOptions, parsed
from autotune.traffic.formats.clock import Clock
from autotune.traffic.formats.documents import Row, as_row, table_rows
from autotune.traffic.formats.fields import (
    elapsed_ms,
    first_of,
    list_of,
    object_of,
    optional_count,
    optional_text,
    required,
)
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.formats.texts import Text, Texts, chat_prompt
from autotune.traffic.formats.usage import tokens_of
from autotune.traffic.model import Trace

_START = ("startTime", "start_time", "Start Time")
_FIRST = ("completionStartTime", "completion_start_time")
_END = ("endTime", "end_time")
_LEVEL = ("level", "observationLevel")
_HINT = "an observation of Langfuse has startTime or start_time"


def read(path: Path, options: ReadOptions = NO_OPTIONS) -> Trace:
    """Read generations; other observations and those of level ERROR are counted.

    Raises:
        TraceError: a row has no time, or counts that are none.
        UsageError: the tokenizer cannot be loaded.
    """
    texts = Texts(options.tokenizer)
    clock = Clock()

    def request(value: object) -> Found:
        row = as_row(value)
        if (optional_text(row, "type") or "GENERATION").upper() != "GENERATION":
            return LeftOut.NOT_REQUESTS
        if (optional_text(row, *_LEVEL) or "").upper() == "ERROR":
            return LeftOut.FAILED
        name, start = first_of(row, *_START)
        arrival_ns = clock.ns(name, required(row, name, _HINT) if start is None else start)
        usage = tokens_of(row)
        return request_or_left_out(
            Recorded(
                arrival_ns=arrival_ns,
                input_length=usage.prompt,
                output_length=usage.output,
                text=_text(row, texts),
                cached_tokens=usage.cached,
                max_tokens=_limit(row),
                model=optional_text(row, "model", "provided_model_name", "providedModelName"),
                ttft_ms=elapsed_ms(arrival_ns, row, *_FIRST),
                e2e_ms=elapsed_ms(arrival_ns, row, *_END),
            )
        )

    rows = table_rows(path, wrapped_in=("data", "observations"))
    found = [each for _, each in parsed(path, rows, request, kind="rows")]
    return assembled(path, found, remarks=(clock.remark(),), is_clock_time=True)


def _limit(row: Row) -> int | None:
    """Return the limit of the output, None where it says nothing that could be one."""
    given = object_of(first_of(row, "modelParameters", "model_parameters")[1])
    try:
        return optional_count(given, "max_completion_tokens", "max_tokens", "maxTokens") or None
    except BadLine:
        return None


def _text(row: Row, texts: Texts) -> Text | None:
    given = row.get("input")
    messages = list_of(given) or list_of(object_of(given).get("messages"))
    return texts.prompt(chat_prompt(messages)) if messages else None


def _recognises(head: str) -> bool:
    if head[0] not in "[{":
        names = {name.strip().strip('"') for name in head.split(",")}
    else:
        found = outline(head)
        names = {*found.keys, *found.inner}
    times = bool(names & {*_START})
    return times and bool(
        names & {"usageDetails", "usage_details", "traceId", "trace_id", *_FIRST, "promptTokens"}
    )


LANGFUSE = Reader(
    name="langfuse",
    summary="Langfuse's observations, with startTime or start_time and their usage",
    recognises=_recognises,
    read=read,
    takes=frozenset({"tokenizer"}),
    read_as=read,
)
