"""What comes over the wire of a streamed answer: events, their tokens, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DONE = "[DONE]"
_HEAD_BYTES = 2048
_MOST_BYTES_OF_AN_EVENT = 64 * 2**20
_THOUGHTS = ("reasoning", "reasoning_content")
_SAID = ("content", *_THOUGHTS, "tool_calls", "function_call", "refusal")


class NoEvent(Exception):
    """The data of an event is no JSON object; where, and nothing of what it says."""


class EventLines:
    """Takes bytes in packets of any size, and gives the data of each server-sent event.

    Lines end in LF or CR LF, as those of all servers do. Comments, which keep a connection
    alive, and all fields but ``data`` are passed over.

    Attributes:
        head: the first bytes, for whoever has to say what came where it was no stream.
    """

    def __init__(self) -> None:
        self.head = b""
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, packet: bytes) -> Iterator[str]:
        """Yield the data of the events that the packet completes.

        Raises:
            NoEvent: a line without end, or no UTF-8.
        """
        if len(self.head) < _HEAD_BYTES:
            self.head += packet[: _HEAD_BYTES - len(self.head)]
        self._rest += packet
        if b"\n" not in packet:
            if len(self._rest) > _MOST_BYTES_OF_AN_EVENT:
                raise NoEvent(f"a line has more than {_MOST_BYTES_OF_AN_EVENT // 2**20} MiB")
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            yield from self._take(bytes(line).removesuffix(b"\r"))

    def finish(self) -> Iterator[str]:
        """Yield the data of an event whose empty line never came, as the stream had ended."""
        if self._rest:
            yield from self._take(bytes(self._rest).removesuffix(b"\r"))
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[str]:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
        elif self._data:
            data, self._data = b"\n".join(self._data), []
            try:
                yield data.decode()
            except UnicodeDecodeError:
                raise NoEvent("an event is no UTF-8") from None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server says that a request took; None where it does not say.

    ``hidden_tokens`` are those of ``output_tokens`` that were spent on reasoning.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    hidden_tokens: int = 0

    @classmethod
    def of(cls, chunk: Mapping[str, Any]) -> Usage | None:
        """Return the usage of a chunk, None if it has none that can be read."""
        usage = _mapping(chunk.get("usage"))
        prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if prompt is None or output is None:
            return None
        cached = _count(_mapping(usage.get("prompt_tokens_details")), "cached_tokens")
        hidden = _count(_mapping(usage.get("completion_tokens_details")), "reasoning_tokens")
        return cls(prompt, output, cached, hidden or 0)


@dataclass(slots=True)
class StreamRead:
    """What was read of one streamed answer so far.

    Attributes:
        events: how many were objects.
        tokens: counted, by ids where they came, else one for each chunk with content.
        by_ids: whether ids came.
        thoughts: whether tokens of reasoning came.
        done: whether the end was marked.
        finish_reason: as the server says it, None if it does not.
        usage: what the server counted.
        error: its message in place of a chunk; None if there was none.
    """

    events: int = 0
    tokens: int = 0
    by_ids: bool = False
    thoughts: bool = False
    done: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None

    def take(self, data: str) -> int:
        """Take note of one event, and return how many tokens it delivers.

        Raises:
            NoEvent: it is no JSON object.
        """
        if data.strip() == DONE:
            self.done = True
            return 0
        chunk = _object(data, self.events + 1)
        self.events += 1
        if chunk.get("error"):
            self.error = error_words(chunk) or "an error without a message"
            return 0
        self.usage = Usage.of(chunk) or self.usage
        choices = chunk.get("choices")
        # The last chunk, with the usage, has none.
        parts = choices if isinstance(choices, list) else []
        new = sum(self._tokens_of(_mapping(choice)) for choice in parts)
        self.tokens += new
        return new

    def _tokens_of(self, choice: Mapping[str, Any]) -> int:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self.by_ids = True
            return len(ids)
        delta = _mapping(choice.get("delta"))
        self.thoughts = self.thoughts or any(delta.get(name) for name in _THOUGHTS)
        # A chunk that only names the role, or the reason of the end, brings no token.
        return int(bool(choice.get("text")) or any(delta.get(name) for name in _SAID))

    @property
    def output_tokens(self) -> int:
        """Tokens that came: as the server counted them, else as counted here.

        What it spent on reasoning that it kept to itself was not delivered.
        """
        if self.usage is None:
            return self.tokens
        hidden = 0 if self.thoughts else self.usage.hidden_tokens
        return max(self.usage.output_tokens - hidden, min(self.tokens, 1))

    @property
    def exact(self) -> bool:
        """Whether the tokens of every delivery are known, and not taken to be one each."""
        return self.usage is not None and self.tokens == self.output_tokens


def error_words(body: object) -> str:
    """Return the message in an error of the API, '' if there is none."""
    content = _mapping(body)
    error = content.get("error")
    if isinstance(error, str):
        return error
    # vLLM's older servers had it at the top; FastAPI calls it detail.
    for holder in (_mapping(error), content):
        for name in ("message", "detail"):
            if isinstance(holder.get(name), str):
                return str(holder[name])
    return ""


def _object(data: str, number: int) -> Mapping[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        raise NoEvent(f"event {number} of the stream is no JSON") from None
    if not isinstance(chunk, dict):
        raise NoEvent(f"event {number} of the stream is no JSON object")
    return chunk


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(holder: Mapping[str, Any], name: str) -> int | None:
    value = holder.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
