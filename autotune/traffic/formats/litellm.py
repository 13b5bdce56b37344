"""LiteLLM's spend logs, as a JSON list, JSON Lines or CSV.

``startTime``, ``endTime``, ``completionStartTime``, ``prompt_tokens``, ``completion_tokens``,
``model``, ``call_type``, ``status``, ``cache_hit``, ``messages`` … Texts are off by default there,
and are an empty object then. Source: LiteLLM, ``schema.prisma``, ``LiteLLM_SpendLogs``.
"""

from __future__ import annotations

from pathlib import Path

from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import NO_OPTIONS, Reader, ReadOptions, parsed
from autotune.traffic.formats.clock import Clock
from autotune.traffic.formats.documents import Row, as_row, table_rows
from autotune.traffic.formats.fields import (
    count,
    elapsed_ms,
    is_true,
    list_of,
    object_of,
    optional_count,
    optional_text,
    required,
)
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.formats.texts import Text, Texts, chat_prompt
from autotune.traffic.model import Trace

_TEXT_CALLS = ("completion", "responses", "messages", "generate_content")
_HINT = "a row of LiteLLM's spend logs has startTime, prompt_tokens and completion_tokens"


def read(path: Path, options: ReadOptions = NO_OPTIONS) -> Trace:
    """Read spend logs; failures, calls for no text and answers from a cache are counted.

    Raises:
        TraceError: a row has no time or no counts.
        UsageError: the tokenizer cannot be loaded.
    """
    texts = Texts(options.tokenizer)
    clock = Clock()

    def request(value: object) -> Found:
        row = as_row(value)
        details = object_of(row.get("metadata"))
        if (left_out := _left_out(row, details)) is not None:
            return left_out
        arrival_ns = clock.ns("startTime", required(row, "startTime", _HINT))
        e2e_ms = elapsed_ms(arrival_ns, row, "endTime")
        ttft_ms = elapsed_ms(arrival_ns, row, "completionStartTime")
        usage = object_of(object_of(details.get("usage_object")).get("prompt_tokens_details"))
        return request_or_left_out(
            Recorded(
                arrival_ns=arrival_ns,
                input_length=count(row, "prompt_tokens"),
                output_length=count(row, "completion_tokens"),
                text=_text(row, texts),
                cached_tokens=optional_count(usage, "cached_tokens"),
                model=optional_text(row, "model_group", "model"),
                # An answer that was not streamed has the same time for both.
                ttft_ms=ttft_ms if ttft_ms != e2e_ms else None,
                e2e_ms=e2e_ms,
            )
        )

    rows = table_rows(path, wrapped_in=("data", "spend_logs", "logs"))
    found = [each for _, each in parsed(path, rows, request, kind="rows")]
    return assembled(path, found, remarks=(clock.remark(),), is_clock_time=True)


def _left_out(row: Row, details: Row) -> LeftOut | None:
    call = (optional_text(row, "call_type") or "completion").lower()
    if not any(kind in call for kind in _TEXT_CALLS):
        return LeftOut.NOT_REQUESTS
    status = optional_text(row, "status") or optional_text(details, "status") or ""
    if status.lower() in ("failure", "failed", "error"):
        return LeftOut.FAILED
    return LeftOut.FROM_CACHE if is_true(row.get("cache_hit")) else None


def _text(row: Row, texts: Texts) -> Text | None:
    messages = list_of(row.get("messages"))
    return texts.prompt(chat_prompt(messages)) if messages else None


def _recognises(head: str) -> bool:
    if head[0] not in "[{":
        return "startTime" in head and "completion_tokens" in head
    found = outline(head)
    names = found.keys if "startTime" in found.keys else found.inner
    ours = {"completion_tokens", "call_type"} & names
    return "startTime" in names and bool(ours) and not {"traceId", "usageDetails"} & names


LITELLM = Reader(
    name="litellm",
    summary="LiteLLM's spend logs, with startTime and completion_tokens",
    recognises=_recognises,
    read=read,
    takes=frozenset({"tokenizer"}),
    read_as=read,
)
