"""What a server answered, read from the first and the last bytes of its response."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.traffic.capture.sighting import Sighting
from autotune.traffic.model import MAX_TOKENS

BYTES_PER_TOKEN = 4.0
"""Of text that nobody counted in tokens: the usual rule of thumb for English."""

_MAX_PLAIN_BYTES = 16 * 2**20
"""Of a response that was compressed: a megabyte of it may stand for a gigabyte."""

_DATA_LINE = re.compile(rb"(?:^|(?<=[\r\n]))data:([^\r\n]*)(?:\r\n|\r|\n)")
_USAGE = re.compile(rb'(?<!\\)"usage"\s*:\s*(?=\{)')
_LAST_EVENTS = ("response.completed", "response.incomplete", "message_stop")
_FAILURES = ("error", "response.failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a response says.

    Attributes:
        prompt_tokens: as the server counted them, None if it did not say.
        output_tokens: likewise, or as counted in events; None if unknown.
        cached_tokens: as the server counted them, None if it did not say.
        estimated: output_tokens is no count of the server.
        ttft_ms: from arrival to the first event with tokens; None if there was none.
        failed: it is an error, or has one in it.
        finished: it says of itself that it is complete.
        text: what was generated, as far as it was kept.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    estimated: bool = False
    ttft_ms: float | None = None
    failed: bool = False
    finished: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Event:
    """An event of a stream: what it holds, where it ends, and the text that it brings."""

    value: Any
    end: int
    text: str = ""


def read_answer(seen: Sighting) -> Answer:
    """Return what the response of an exchange says; nothing that it says is an error here."""
    if seen.status is None or seen.status >= 400:
        return Answer(failed=True)
    plain = seen
    if seen.encoding:
        unpacked = _unpacked(seen)
        if unpacked is None:
            return Answer()
        plain = unpacked
    return _of_stream(plain) if plain.stream else _of_body(plain)


def _unpacked(seen: Sighting) -> Sighting | None:
    """Return the exchange without compression, None where that cannot be undone."""
    if seen.encoding not in ("gzip", "deflate") or not seen.head:
        return None
    packed = seen.head + (seen.tail if seen.whole else b"")
    found = _inflated(packed, seen.encoding)
    if found is None:
        return None
    data, whole = found
    size = len(data) if whole and seen.whole else len(data) + 1
    events = (b"\n" + data).count(b"\ndata:")
    return replace(seen, encoding="", head=data, tail=b"", size=size, events=events, stamps=())


def _inflated(packed: bytes, encoding: str) -> tuple[bytes, bool] | None:
    """Return the beginning of what was compressed, and whether it is all that ``packed`` has."""
    # What is called deflate comes with the frame of zlib, as it should, or without.
    for wbits in (47,) if encoding == "gzip" else (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        # A stream may be cut off and still be read as far as it goes.
        unpacker = zlib.decompressobj(wbits=wbits)
        with suppress(zlib.error):
            data = unpacker.decompress(packed, _MAX_PLAIN_BYTES)
            return data, not unpacker.unconsumed_tail
    return None


def _of_body(seen: Sighting) -> Answer:
    data = seen.head + seen.tail
    row: Any = None
    if seen.whole:
        try:
            row = json.loads(data)
        except (ValueError, RecursionError):
            row = None
    text = _text_of(row)
    usage = _usage_of(row) or _last_usage(data)
    answer = _with_usage(Answer(text=text, finished=row is not None), usage)
    if answer.output_tokens is None and text:
        tokens = max(1, round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN))
        answer = replace(answer, output_tokens=tokens, estimated=True)
    return answer


def _of_stream(seen: Sighting) -> Answer:
    head = _Told()
    for event in _events(seen.head + seen.tail if seen.whole else seen.head):
        head.hear(event, seen.stamps)
    tail = _Told()
    if not seen.whole:
        for event in _events(seen.tail):
            tail.hear(event, ())
        # The last event of some streams repeats all that came, and is longer than the tail.
        tail.usage.update(_last_usage(seen.tail) or {})
    answer = Answer(
        ttft_ms=head.ttft_ms,
        failed=head.failed or tail.failed,
        finished=head.finished or tail.finished,
        text="".join(head.texts),
    )
    answer = _with_usage(answer, {**head.usage, **tail.usage})
    if answer.output_tokens is None:
        tokens = seen.events - head.idle - tail.idle
        answer = replace(answer, output_tokens=max(0, tokens) or None, estimated=True)
    return answer


@dataclass(slots=True)
class _Told:
    """What the events of a stream have told so far; the events themselves are not kept."""

    usage: dict[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    ttft_ms: float | None = None
    idle: int = 0
    failed: bool = False
    finished: bool = False

    def hear(self, event: _Event, stamps: Sequence[tuple[float, int]]) -> None:
        self.usage.update(_usage_of(event.value) or {})
        self.failed = self.failed or _is_failure(event.value)
        self.finished = self.finished or _is_last(event.value)
        if not event.text:
            self.idle += 1
            return
        if not self.texts:
            self.ttft_ms = _when(stamps, event.end)
        self.texts.append(event.text)


def _events(data: bytes) -> Iterator[_Event]:
    """Yield what the lines of data hold; a line that is cut off, or no JSON, counts as none."""
    for found in _DATA_LINE.finditer(data):
        content = found[1].strip()
        if content == b"[DONE]":
            yield _Event("[DONE]", found.end())
            continue
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            continue
        yield _Event(value, found.end(), _text_of(value))


def _when(stamps: Sequence[tuple[float, int]], end: int) -> float | None:
    """Return when the byte before ``end`` had come."""
    return next((moment_ms for moment_ms, by_then in stamps if by_then >= end), None)


def _is_last(value: Any) -> bool:
    return value == "[DONE]" or (isinstance(value, dict) and value.get("type") in _LAST_EVENTS)


def _is_failure(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return bool(value.get("error")) or value.get("type") in _FAILURES


def _text_of(value: Any) -> str:
    """Return the generated text of a body or an event, of whichever interface it is."""
    if not isinstance(value, dict):
        return ""
    if isinstance(value.get("choices"), list):
        return "".join(_choice_text(each) for each in value["choices"])
    kind = value.get("type")
    if isinstance(kind, str) and kind.endswith("delta"):
        return _delta_text(value.get("delta"))
    for name in ("output", "content"):
        if isinstance(value.get(name), list):
            return "".join(_part_text(each) for each in value[name])
    return ""


def _choice_text(choice: Any) -> str:
    if not isinstance(choice, dict):
        return ""
    if isinstance(choice.get("text"), str):
        return str(choice["text"])
    return _delta_text(choice.get("delta") or choice.get("message"))


def _delta_text(delta: Any) -> str:
    """Return all that a delta brings: text, reasoning, and calls of tools."""
    if isinstance(delta, str):
        return delta
    if not isinstance(delta, dict):
        return ""
    names = ("reasoning_content", "reasoning", "thinking", "content", "text", "refusal")
    texts = [delta[name] for name in names if isinstance(delta.get(name), str)]
    texts += [delta["partial_json"]] if isinstance(delta.get("partial_json"), str) else []
    if delta.get("tool_calls"):
        texts.append(json.dumps(delta["tool_calls"]))
    return "".join(texts)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    if isinstance(part.get("content"), list):
        return "".join(_part_text(each) for each in part["content"])
    for name in ("text", "thinking", "arguments"):
        if isinstance(part.get(name), str):
            return str(part[name])
    return json.dumps(part["input"]) if part.get("input") else ""


def _usage_of(value: Any) -> dict[str, Any] | None:
    """Return the usage of a body or an event, which may have it one level down."""
    if not isinstance(value, dict):
        return None
    for holder in (value, value.get("response"), value.get("message")):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            return {key: each for key, each in holder["usage"].items() if each is not None}
    return None


def _last_usage(data: bytes) -> dict[str, Any] | None:
    """Return the last usage in a body of which the beginning is missing."""
    found = list(_USAGE.finditer(data))
    if not found:
        return None
    text = data[found[-1].end() :].decode("utf-8", "replace")
    try:
        usage, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return {key: each for key, each in usage.items() if each is not None}


def _with_usage(answer: Answer, usage: Mapping[str, Any] | None) -> Answer:
    if not usage:
        return answer
    prompt = _count(usage.get("prompt_tokens"))
    cached = _cached(usage)
    if prompt is None and (given := _count(usage.get("input_tokens"))) is not None:
        # Of the messages interface, what was cached comes on top.
        extra = ("cache_read_input_tokens", "cache_creation_input_tokens")
        prompt = given + sum(_count(usage.get(name)) or 0 for name in extra)
    output = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    return replace(
        answer, prompt_tokens=prompt or None, output_tokens=output, cached_tokens=cached
    )


def _cached(usage: Mapping[str, Any]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            return _count(details.get("cached_tokens"))
    return _count(usage.get("cache_read_input_tokens"))


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
        return None
    return value
