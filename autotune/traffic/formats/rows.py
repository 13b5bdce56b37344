"""One row of JSON Lines as a request, or what is wrong with it in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import in_plain_words
from autotune.traffic.formats.base import BadLine, shown
from autotune.traffic.model import (
    MAX_HASH_ID,
    MAX_PRIORITY,
    MAX_TOKENS,
    MIN_PRIORITY,
    TraceRequest,
)
from autotune.traffic.recording import Outcome
from objectives.errors import nearest

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
HashId = Annotated[int, Field(ge=0, le=MAX_HASH_ID)]

_EXAMPLE = '{"timestamp": 121.2, "input_length": 160, "output_length": 238, "hash_ids": [25]}'
_WHOLE = f"a whole number from 1 to {MAX_TOKENS}, without quotes"
_FORMS = {
    "timestamp": "timestamp is the arrival in ms from time zero, a number from 0 without quotes",
    "input_length": f"input_length is {_WHOLE}",
    "output_length": f"output_length is {_WHOLE}",
    "hash_ids": "hash_ids has a whole number from 0 to 2^63 - 1 for each block of the prompt",
    "max_tokens": f"max_tokens is {_WHOLE}; or leave it out",
    "priority": "priority is a whole number of 32 bits; or leave it out",
    "cached_tokens": f"cached_tokens is a whole number from 0 to {MAX_TOKENS}; or leave it out",
    "model": "model is a text in quotes; or leave it out",
    "outcome": 'outcome is "cancelled" or "failed"; or leave it out',
    "ttft_ms": "ttft_ms is a number of ms from 0; or leave it out",
    "e2e_ms": "e2e_ms is a number of ms from 0; or leave it out",
    "estimated": "estimated is true; or leave it out",
    "prompt_text": "prompt_text is a text in quotes; or leave it out",
    "output_text": "output_text is a text in quotes; or leave it out",
}
_SESSIONS = "sessions and chains of turns are not read: write a line for each request"
_FOREIGN = {
    "turns": _SESSIONS,
    "session_id": _SESSIONS,
    "chat_id": "Qwen-Bailian's traces count in seconds: --format bailian reads them",
    "delay": _SESSIONS,
    "text_input": "a trace holds lengths and no text: count the tokens into input_length",
    "prompt": "a trace holds lengths and no text: count the tokens into input_length",
    "messages": "a trace holds lengths and no text: count the tokens into input_length",
}
"""Fields of other published traces, with what to do about them."""

_OTHER_NAMES = {
    "timestamp": (
        "time", "ts", "t", "arrival", "arrival_time", "arrived_at", "arrival_timestamp",
        "start_time", "request_time", "created", "created_at",
    ),
    "input_length": (
        "prompt_tokens", "input_tokens", "in_tokens", "context_tokens", "contexttokens",
        "n_prompt", "n_input", "n_prompt_tokens", "n_input_tokens", "num_prompt_tokens",
        "num_input_tokens", "prompt_token_count", "prompt_len", "prompt_length", "isl",
    ),
    "output_length": (
        "completion_tokens", "output_tokens", "out_tokens", "generated_tokens",
        "generatedtokens", "generation_tokens", "response_tokens", "n_output", "n_completion",
        "n_output_tokens", "n_generated", "num_output_tokens", "num_generated_tokens",
        "num_generation_tokens", "completion_token_count", "candidates_token_count",
        "completion_len", "completion_length", "osl",
    ),
}  # fmt: skip
"""What gateways and servers call the same things in their logs, in small letters."""

_CALLED = {other: name for name, others in _OTHER_NAMES.items() for other in others}


class _Row(BaseModel):
    # What stands in a row may be somebody's prompt, and is in no traceback either.
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    timestamp: Annotated[float, Field(ge=0)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[HashId, ...] | None = None
    max_tokens: Tokens | None = None
    priority: Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    cached_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    model: str | None = None
    outcome: Outcome | None = None
    ttft_ms: Annotated[float, Field(ge=0)] | None = None
    e2e_ms: Annotated[float, Field(ge=0)] | None = None
    estimated: Literal[True] | None = None
    prompt_text: str | None = None
    output_text: str | None = None


def parse_row(text: str) -> TraceRequest:
    """Return the request of one line; ``hash_ids`` is empty where the row has none.

    Raises:
        BadLine: it is no request.
    """
    try:
        row = _Row.model_validate_json(text)
    except ValidationError as error:
        raise _bad(error) from error
    if row.hash_ids == ():
        reason = f"hash_ids: 0 ids for {row.input_length} prompt tokens"
        raise BadLine(reason, hint="leave hash_ids out where the prefix is unknown")
    return TraceRequest(
        timestamp_ms=row.timestamp,
        input_length=row.input_length,
        output_length=row.output_length,
        hash_ids=row.hash_ids or (),
        max_tokens=row.max_tokens,
        priority=row.priority,
        cached_tokens=row.cached_tokens,
        model=row.model,
        outcome=row.outcome,
        ttft_ms=row.ttft_ms,
        e2e_ms=row.e2e_ms,
        estimated=row.estimated,
        prompt_text=row.prompt_text,
        output_text=row.output_text,
    )


def reason_of(error: ValidationError) -> str:
    """Return the first objection of pydantic as ``field: what is wrong``."""
    return _worded(error.errors(include_url=False, include_input=False)[0])


def _bad(error: ValidationError) -> BadLine:
    found = error.errors(include_url=False, include_input=False)
    # A misspelt field is missing as well, and the more telling of the two faults.
    first: Mapping[str, Any] = min(found, key=lambda each: each["type"] != "extra_forbidden")
    return BadLine(_worded(first), hint=_renamed(found) or _hint(first))


def _renamed(found: Sequence[Mapping[str, Any]]) -> str:
    """Say which fields to rename, of those that are missing and there by another name."""
    missing = {error["loc"][0] for error in found if error["type"] == "missing"}
    unknown = [str(e["loc"][0]) for e in found if e["type"] == "extra_forbidden"]
    names = {given: name for given in unknown if (name := _plain_name(given)) in missing}
    if not names:
        return ""
    pairs = ", ".join(
        f"{given} to {name}{' (in ms)' if name == 'timestamp' else ''}"
        for given, name in names.items()
    )
    return f"rename {pairs}" + ("; leave the others out" if len(unknown) > len(names) else "")


def _plain_name(given: str) -> str | None:
    """Return what a field of another log is called here, None if nobody knows."""
    return _CALLED.get(given.lower().replace("-", "_"))


def _worded(error: Mapping[str, Any]) -> str:
    message = re.sub(r" at line \d+ column (\d+)$", r" at character \1", error["msg"])
    message = in_plain_words(message)
    message = message[:1].lower() + message[1:]
    if error["type"] == "extra_forbidden":
        return f"unknown field {shown(str(error['loc'][0]))}"
    where = ".".join(str(part) for part in error["loc"])
    if where:
        return f"{where}: {message}"
    return f"the line {message}" if message.startswith("must ") else message


def _hint(error: Mapping[str, Any]) -> str:
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        known = "known fields are " + ", ".join(_FORMS)
        if (plain := _plain_name(name)) is not None:
            return f"leave it out: {plain} says it"
        return _FOREIGN.get(name) or nearest(name[:100], _FORMS) or known
    if "EOF while parsing" in error["msg"]:
        return "the line is cut off: a request is one JSON object on one line"
    return _FORMS.get(name, f"a line is {_EXAMPLE}")
