"""A server of the OpenAI API on loopback that answers by a script, faults included.

It speaks HTTP/1.1 by hand, so that it can send what no proper server would. Everything it does
is decided by its ``Script``; nothing waits but for what the client sends.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

KEY = "sk-planted-0123456789abcdef"
"""The key that the server asks for where it asks for one; to be found in no output."""

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"

Body = Mapping[str, Any]
Stream = Callable[[Body, bool], Iterator[bytes]]
"""From a request, and whether it is a chat, to the packets of the answer's body."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Body


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer in one piece."""

    status: int
    body: str
    content_type: str = JSON
    location: str = ""


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


_TLS_HELLO = b"\x16"
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nInvalid HTTP request received."
)
_TOKENS = ("/completions", "/chat/completions")
DONE = b"data: [DONE]\n\n"


def usage_of(body: Body, chat: bool, tokens: int) -> dict[str, Any]:
    """Count a prompt as the stub's tokenizer does: 2 tokens a word, 8 around a chat."""
    if chat:
        prompt = 8 + 2 * len(str(body["messages"][0]["content"]).split())
    else:
        prompt = len(body["prompt"])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": min(4, prompt - 1)},
    }


def choice(chat: bool, text: str, **more: Any) -> dict[str, Any]:
    said = {"delta": {"content": text}} if chat else {"text": text}
    return {"index": 0, **said, "finish_reason": None, **more}


def chunk(*choices: Mapping[str, Any], **more: Any) -> bytes:
    return event({"id": "x", "object": "chunk", "choices": list(choices), **more})


def good(body: Body, chat: bool) -> Iterator[bytes]:
    """Answer as vLLM does: ids where they are asked for, the usage last, in a chunk of its own."""
    wanted = int(body["max_tokens"])
    if chat:
        yield chunk({"index": 0, "delta": {"role": "assistant", "content": ""}})
    ids = bool(body.get("return_token_ids"))
    for number in range(wanted):
        last = "length" if number == wanted - 1 else None
        more: dict[str, Any] = {"token_ids": [7]} if ids else {}
        yield chunk(choice(chat, " secret-answer", **more) | {"finish_reason": last})
    if body.get("stream_options", {}).get("include_usage"):
        yield chunk(usage=usage_of(body, chat, wanted))
    yield DONE


@dataclass(slots=True)
class Script:
    """How the server behaves.

    Attributes:
        stream: of completions and chats that are accepted.
        whole: in place of any stream, by path; the path ends so.
        models: that are listed, with what is said of each besides.
        root: what all paths begin with.
        key: that is asked for; None for none.
        chunked: whether the body's end is told by chunks; else by closing.
        raw: in place of any answer, bytes as they are; None to answer.
        then_hang: whether a stream that is over is never ended.
        cut: whether the connection is closed in place of the body's end.
    """

    stream: Stream = good
    whole: Mapping[str, Whole] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"m": {"owned_by": "vllm", "max_model_len": 8192, "root": "m"}}
    )
    root: str = "/v1"
    key: str | None = None
    chunked: bool = True
    raw: bytes | None = None
    then_hang: bool = False
    cut: bool = False


@dataclass(slots=True)
class FaultyServer:
    """What runs; ``asked`` and ``connections`` grow while it does."""

    script: Script
    port: int = 0
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    @property
    def base_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    def bodies(self) -> list[Body]:
        """Return the requests that were to be answered by tokens."""
        return [each.body for each in self.asked if each.method == "POST"]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                if not await self._answer(asked, reader, writer):
                    break
        writer.close()

    async def _answer(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer, and return whether the connection goes on."""
        if self.script.raw is not None or asked.method == "HELLO":
            writer.write(_BAD_REQUEST if self.script.raw is None else self.script.raw)
            await writer.drain()
            return False
        whole = self._whole(asked)
        if whole is not None:
            head = f"HTTP/1.1 {whole.status} X\r\ncontent-type: {whole.content_type}\r\n"
            head += f"location: {whole.location}\r\n" if whole.location else ""
            body = whole.body.encode()
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            return True
        length = "transfer-encoding: chunked" if self.script.chunked else "connection: close"
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {EVENTS}\r\n{length}\r\n\r\n".encode())
        packets = self.script.stream(asked.body, asked.path.endswith("/chat/completions"))
        async for packet in _paced(packets):
            framed = b"%x\r\n%b\r\n" % (len(packet), packet) if self.script.chunked else packet
            writer.write(framed)
            await writer.drain()
        if self.script.then_hang:
            # Until the client has had enough.
            await reader.read()
            return False
        if self.script.chunked and not self.script.cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return self.script.chunked and not self.script.cut

    def _whole(self, asked: Asked) -> Whole | None:
        """Return what is answered in one piece, None for a stream."""
        for end, whole in self.script.whole.items():
            if asked.path.endswith(end):
                return whole
        given = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if self.script.key is not None and given != self.script.key:
            return _error(401, f"Incorrect API key provided: {given}")
        if asked.path == f"{self.script.root}/models":
            return self._models()
        if asked.path not in (self.script.root + end for end in _TOKENS):
            return Whole(404, '{"detail":"Not Found"}')
        if asked.body.get("model") not in self.script.models:
            return _error(404, f"The model `{asked.body.get('model')}` does not exist.")
        return None

    def _models(self) -> Whole:
        listed = [{"id": name, "object": "model", **m} for name, m in self.script.models.items()]
        return Whole(200, json.dumps({"object": "list", "data": listed}))


def _error(status: int, message: str) -> Whole:
    return Whole(status, json.dumps({"error": {"message": message, "code": status}}))


async def _paced(packets: Iterator[bytes]) -> AsyncIterator[bytes]:
    for packet in packets:
        yield packet
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    """Read one request, None at the end of the connection."""
    try:
        begun = await reader.readexactly(1)
        if begun == _TLS_HELLO:
            return Asked("HELLO", "", {}, {})
        head = (begun + await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, json.loads(raw) if raw else {})


@contextmanager
def running(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[FaultyServer]:
    """Serve by a script on a thread of its own until the block is left."""
    server = FaultyServer(script, scheme="https" if tls else "http")
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        listening.close()

    async def end() -> None:
        """End the connections that clients still hold."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run() -> None:
        # What a client breaks off is no fault of a test.
        loop.set_exception_handler(lambda _loop, _context: None)
        loop.run_until_complete(serve())
        loop.run_until_complete(end())
        loop.close()

    thread = threading.Thread(target=run, name="faulty server", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
