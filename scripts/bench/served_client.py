"""A real OpenAI client that keeps its own record, and a tap that keeps what a server sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
import httpx
import numpy as np
import openai

Kind = Literal["chat", "completion", "tokens", "whole", "two", "cancelled", "refused"]
KINDS: dict[Kind, float] = {
    "chat": 0.55, "completion": 0.2, "tokens": 0.08, "whole": 0.06, "two": 0.02, "cancelled": 0.06,
    "refused": 0.03,
}  # fmt: skip
"""Streams of chats, of texts and of token ids; an answer in one piece; two answers to one prompt;
a client that leaves after some tokens; a model that is not there."""

ID_HEADER = "x-request-id"
LEAVE_AFTER = 4
_SYSTEMS = 6
_SYSTEM_WORDS = 220


@dataclass(frozen=True)
class Ask:
    """One request of the workload: its kind, and what it says."""

    number: int
    at_s: float
    kind: Kind
    system: str
    text: str
    output_tokens: int


@dataclass
class Seen:
    """What the client saw of a request; times are of the clock that everybody shares."""

    ask: Ask
    sent_s: float = 0.0
    ttft_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    body: bytearray = field(default_factory=bytearray)
    error: str | None = None


def workload(count: int, rate: float, seed: int) -> list[Ask]:
    """Return requests that share beginnings, in Poisson arrivals of ``rate`` per second."""
    luck = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(400)]

    def text(length: int) -> str:
        return " ".join(luck.choice(words, size=length))

    systems = [text(_SYSTEM_WORDS) for _ in range(_SYSTEMS)]
    arrivals = np.cumsum(luck.exponential(1 / rate, size=count))
    kinds = luck.choice(list(KINDS), size=count, p=list(KINDS.values()))
    # The first is an ordinary one of some length, as a server on a CPU wants it.
    kinds[0] = "chat"
    return [
        Ask(
            number,
            float(arrivals[number]),
            kinds[number].item(),
            systems[int(luck.integers(_SYSTEMS))],
            text(int(luck.integers(10, 160))),
            int(luck.integers(12, 48)),
        )
        for number in range(count)
    ]


class _Kept(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, body: bytearray) -> None:
        self._stream = stream
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._body += chunk
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class Keeping(httpx.AsyncHTTPTransport):
    """Keeps the bytes of every response as they came, under the id of its request."""

    def __init__(self) -> None:
        super().__init__(limits=httpx.Limits(max_connections=None))
        self.bodies: dict[str, bytearray] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        body = self.bodies.setdefault(request.headers[ID_HEADER], bytearray())
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Kept(response.stream, body)
        return response


async def drive(base_url: str, model: str, asks: list[Ask]) -> list[Seen]:
    """Send every request at its time; return what was seen."""
    keeping = Keeping()
    async with openai.AsyncOpenAI(
        base_url=base_url,
        api_key="sk-planted-secret",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=keeping, timeout=600),
    ) as client:
        begun_s = time.perf_counter()
        tasks = [asyncio.ensure_future(_one(client, model, ask, begun_s)) for ask in asks]
        seen = await asyncio.gather(*tasks)
    for each in seen:
        each.body = keeping.bodies.get(f"ask-{each.ask.number}", bytearray())
    return seen


async def _one(client: openai.AsyncOpenAI, model: str, ask: Ask, begun_s: float) -> Seen:
    await asyncio.sleep(begun_s + ask.at_s - time.perf_counter())
    seen = Seen(ask, sent_s=time.time())
    named = {
        "model": "no-such-model" if ask.kind == "refused" else model,
        "max_tokens": ask.output_tokens,
        "n": 2 if ask.kind == "two" else 1,
        "extra_headers": {ID_HEADER: f"ask-{ask.number}"},
        "extra_body": {"ignore_eos": True},
        **_prompt(ask),
    }
    create: Any = (
        client.chat.completions.create if "messages" in named else client.completions.create
    )
    sent_s = time.perf_counter()
    try:
        if ask.kind == "whole":
            _usage(seen, (await create(**named)).usage)
            return seen
        stream = await create(**named, stream=True, stream_options={"include_usage": True})
        await _read(seen, stream, sent_s)
    except openai.APIError as error:
        seen.error = type(error).__name__
    return seen


def _prompt(ask: Ask) -> dict[str, Any]:
    if ask.kind == "completion":
        return {"prompt": f"{ask.system} {ask.text}"}
    if ask.kind == "tokens":
        return {"prompt": [5 + len(word) + ord(word[-1]) for word in ask.text.split()]}
    system = {"role": "system", "content": ask.system}
    return {"messages": [system, {"role": "user", "content": ask.text}]}


async def _read(seen: Seen, stream: Any, sent_s: float) -> None:
    async with stream:
        async for chunk in stream:
            if chunk.usage is not None:
                _usage(seen, chunk.usage)
            for choice in chunk.choices:
                content = choice.text if hasattr(choice, "text") else choice.delta.content
                if not content:
                    continue
                if seen.ttft_ms is None:
                    seen.ttft_ms = (time.perf_counter() - sent_s) * 1e3
                if seen.prompt_tokens is None:
                    seen.output_tokens += 1
            if seen.ask.kind == "cancelled" and seen.output_tokens >= LEAVE_AFTER:
                return


def _usage(seen: Seen, usage: Any) -> None:
    seen.prompt_tokens, seen.output_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        seen.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0


class Tap:
    """Passes connections on and keeps the bodies of responses, by the ids of requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.port = 0
        self.bodies: dict[str, bytearray] = {}
        self._passing: set[asyncio.Task[Any] | None] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Tap]:
        """Listen within the block; clients have left before its end."""
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await asyncio.gather(*(each for each in self._passing if each is not None))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._passing.add(asyncio.current_task())
        there, here = await asyncio.open_connection("127.0.0.1", self._port)
        names: asyncio.Queue[str] = asyncio.Queue()
        asked = httptools.HttpRequestParser(_Asked(names))
        answered = httptools.HttpResponseParser(_Answered(names, self.bodies))
        await asyncio.gather(_pump(reader, here, asked), _pump(there, writer, answered))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: Any) -> None:
    try:
        while data := await reader.read(2**16):
            parser.feed_data(data)
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class _Asked:
    def __init__(self, names: asyncio.Queue[str]) -> None:
        self._names = names

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == ID_HEADER.encode():
            self._names.put_nowait(value.decode())


class _Answered:
    def __init__(self, names: asyncio.Queue[str], bodies: dict[str, bytearray]) -> None:
        self._names = names
        self._bodies = bodies
        self._name = ""

    def on_message_begin(self) -> None:
        self._name = self._names.get_nowait()
        self._bodies[self._name] = bytearray()

    def on_body(self, body: bytes) -> None:
        self._bodies[self._name] += body
