"""A streaming reverse proxy: what comes from one side goes to the other, as it is and at once."""

from __future__ import annotations

import asyncio
import json
import re
from urllib.parse import SplitResult, urlsplit

from autotune.errors import UsageError
from autotune.traffic.capture.exchange import Exchange
from autotune.traffic.capture.observe import Message, Receive, Scope, Send
from autotune.traffic.capture.request import Request
from autotune.traffic.capture.upstream import NoAnswer, Pool, Refused, Target

_NOT_IN_URLS = re.compile(r"[^!-~]")


def parse_upstream(text: str) -> str:
    """Return the base of all paths; ``/v1`` at its end is left out, as clients' paths have it.

    Raises:
        UsageError: it is no URL of a server, or has a secret in it.
    """
    hint = "name the server as http://127.0.0.1:8000"
    try:
        parts: SplitResult = urlsplit(text)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise UsageError("--upstream is no URL", hint=hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError("--upstream must begin with http:// or https:// and a host", hint=hint)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "--upstream has more than scheme, host, port and path",
            hint="clients send their keys themselves; they are passed on and never kept",
        )
    if _NOT_IN_URLS.search(parts.path):
        raise UsageError("--upstream has a path with characters that URLs escape", hint=hint)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


class Forward:
    """An ASGI application that asks another server. Open it with ``async with``.

    ``send`` may be called outside the task of the request, and has to bear that.
    """

    def __init__(self, upstream: str) -> None:
        self._target = Target.of(upstream)
        self._pool = Pool(self._target)

    async def __aenter__(self) -> Forward:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._pool.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _refuse_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        first = await receive()
        if first["type"] == "http.disconnect":
            return
        try:
            await self._ask(Request(scope, self._target), first, receive, send)
        except Refused as refusal:
            await _answer(send, refusal.status, refusal.words)

    async def _ask(self, request: Request, first: Message, receive: Receive, send: Send) -> None:
        begun = request.head + request.framed(first)
        connection = self._pool.taken()
        if connection is not None:
            exchange = Exchange(connection, request.method, send)
            try:
                await _passed(exchange, request, begun, first, receive)
            except NoAnswer:
                # The server had closed it, or closed it meanwhile. Whether it has begun the
                # request cannot be known, so that one that may do something is not sent again.
                if not (exchange.silent and request.repeatable) or first.get("more_body", False):
                    raise
            else:
                return
        exchange = Exchange(await self._pool.opened(), request.method, send)
        await _passed(exchange, request, begun, first, receive)


async def _passed(
    exchange: Exchange, request: Request, begun: bytes, first: Message, receive: Receive
) -> None:
    """Return when the response was passed on, or the client has left."""
    more = first.get("more_body", False)
    exchange.begin(begun, more=more)
    # Watching the client begins when the server has the request, which so does not wait for it.
    reading = asyncio.ensure_future(_read(exchange, request, receive, more=more))
    try:
        await asyncio.wait((exchange.over, reading), return_when=asyncio.FIRST_COMPLETED)
        if exchange.over.done():
            exchange.over.result()
        else:
            reading.result()
    finally:
        exchange.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(exchange: Exchange, request: Request, receive: Receive, *, more: bool) -> None:
    """Pass the rest of a request on; return when the client has left."""
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
        exchange.write(request.framed(message), more=more)
        await exchange.connection.drained()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, message: str) -> None:
    """Answer as an OpenAI-compatible server would, so that clients show the words."""
    body = json.dumps({"error": {"message": message, "type": "autotune_capture"}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        body = b"autotune capture passes HTTP only, no websockets\n"
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        await send({"type": "websocket.http.response.start", "status": 501, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send({"type": "websocket.close", "code": 1011})
