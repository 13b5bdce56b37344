"""A server as OpenAI-compatible ones are, and the proxy before it, in the loop of the test."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import uvicorn

from autotune.traffic.capture.forward import Forward
from autotune.traffic.capture.observe import Message, Receive, Scope, Send

WORD = "lorem"
"""What the stub answers, once a token."""


def chunk(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def body_of(receive: Receive) -> bytes:
    data = b""
    while True:
        message = await receive()
        data += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return data


class Stub:
    """Answers chats; the name of the model says how.

    Attributes:
        requests: the bodies that came, as bytes.
        headers: of each of them.
        left: how many clients went before the end.
        hold: chats of the model ``endless`` end when it is set.
    """

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.left = 0
        self.hold = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await body_of(receive)
        self.requests.append(body)
        self.headers.append(dict(scope["headers"]))
        path = scope["path"]
        if path.startswith("/v1/chat/completions"):
            await self._chat(json.loads(body), receive, send)
        elif path == "/echo":
            kind = dict(scope["headers"]).get(b"content-type", b"text/plain")
            await self._whole(send, 200, body, kind)
        elif path.startswith("/status/"):
            status = int(path.rsplit("/", 1)[1])
            if status in (204, 304):
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send(chunk(b"", more=False))
                return
            await self._whole(send, status, b'{"error": {"message": "as asked"}}')
        elif path == "/gzip":
            packed = gzip.compress(b"x" * 100_000, mtime=0)
            await self._whole(send, 200, packed, extra=[(b"content-encoding", b"gzip")])
        else:
            await self._whole(send, 404, b'{"error": {"message": "no such path"}}')

    async def _whole(
        self,
        send: Send,
        status: int,
        body: bytes,
        kind: bytes = b"application/json",
        extra: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
            *(extra or []),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(chunk(body, more=False))

    async def _chat(self, asked: dict[str, Any], receive: Receive, send: Send) -> None:
        model = asked["model"]
        tokens = asked.get("max_tokens", 3)
        usage = {
            "prompt_tokens": prompt_tokens(asked),
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": 16},
        }
        if not asked.get("stream"):
            text = " ".join([WORD] * tokens)
            message = {"role": "assistant", "content": text}
            choices = [{"index": 0, "message": message, "finish_reason": "length"}]
            row: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 1}
            row |= {"model": model, "choices": choices, "usage": usage}
            await self._whole(send, 200, json.dumps(row).encode())
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with_usage = (asked.get("stream_options") or {}).get("include_usage")
        await self._stream(model, tokens, usage if with_usage else None, receive, send)

    async def _stream(
        self,
        model: str,
        tokens: int,
        usage: dict[str, Any] | None,
        receive: Receive,
        send: Send,
    ) -> None:
        def row(choices: list[Any], **more: Any) -> bytes:
            named = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": model}
            return event({**named, "choices": choices, **more})

        await send(chunk(row([{"index": 0, "delta": {"role": "assistant", "content": ""}}])))
        for number in range(tokens):
            await send(chunk(row([{"index": 0, "delta": {"content": f"{WORD} "}}])))
            if model == "dies" and number == 1:
                raise ConnectionResetError
            if model == "endless" and number == 1:
                await self._until_left(receive)
                return
            await asyncio.sleep(0)
        await send(chunk(row([{"index": 0, "delta": {}, "finish_reason": "length"}])))
        if usage is not None:
            await send(chunk(row([], usage=usage)))
        await send(chunk(b"data: [DONE]\n\n"))
        await send(chunk(b"", more=False))

    async def _until_left(self, receive: Receive) -> None:
        message: Message = {"type": ""}
        while message["type"] != "http.disconnect":
            message = await receive()
        self.left += 1
        self.hold.set()


def prompt_tokens(asked: dict[str, Any]) -> int:
    """Return what the stub counts for a prompt: a token for each four characters."""
    texts = [message["content"] for message in asked["messages"]]
    return max(1, sum(len(text) for text in texts) // 4)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait without looking ten times a second."""
        await self.on_tick(0)
        await self.ending.wait()

    @contextmanager
    def capture_signals(self) -> Any:
        yield


@asynccontextmanager
async def served(
    app: Any, *, own_headers: bool = True, lifespan: Literal["on", "off"] = "off"
) -> AsyncIterator[str]:
    """Serve an application on a free port within the block; give its address."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = _Server(
        uvicorn.Config(
            app,
            lifespan=lifespan,
            server_header=own_headers,
            date_header=own_headers,
            log_config=None,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
    )
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    await server.listening.wait()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.ending.set()
        await running


@asynccontextmanager
async def proxied(upstream: str, wrap: Any) -> AsyncIterator[str]:
    """Serve the proxy before ``upstream``; ``wrap`` has what passes observed."""
    async with Forward(upstream) as forward, served(wrap(forward), own_headers=False) as address:
        yield address
