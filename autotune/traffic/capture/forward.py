"""A streaming reverse proxy: what comes from one side goes to the other, as it is and at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
from yarl import URL

from autotune.errors import UsageError
from autotune.traffic.capture.observe import Message, Receive, Scope, Send

CONNECT_S = 10.0
KEEP_ALIVE_S = 2.0
"""Of idle connections to the server: less than the 5 s after which uvicorn closes them."""

_FIELD_BYTES = 64 * 2**10
_HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
"""Headers that concern one connection and not the message: RFC 9110, section 7.6.1."""

_OWN = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""What aiohttp would add of its own."""


class BrokenOff(Exception):
    """The server broke off in mid-response; the client's connection is closed likewise."""


def parse_upstream(text: str) -> str:
    """Return the base of all paths; ``/v1`` at its end is left out, as clients' paths have it.

    Raises:
        UsageError: it is no URL of a server, or has a secret in it.
    """
    hint = "name the server as http://127.0.0.1:8000"
    try:
        parts: SplitResult = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError("--upstream is no URL", hint=hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError("--upstream must begin with http:// or https:// and a host", hint=hint)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "--upstream has more than scheme, host, port and path",
            hint="clients send their keys themselves; they are passed on and never kept",
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


class Forward:
    """An ASGI application that asks another server. Open it with ``async with``."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Forward:
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                auto_decompress=False,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_OWN,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                max_line_size=_FIELD_BYTES,
                max_field_size=_FIELD_BYTES,
            )
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _refuse_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        first = await receive()
        if first["type"] == "http.disconnect":
            return
        body = _Body(first, receive)
        passing = asyncio.ensure_future(self._pass(scope, body, send))
        leaving = asyncio.ensure_future(body.until_client_leaves())
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            # Cancelling the first closes the connection to the server, which so learns of it.
            await _cancelled(passing, leaving)

    async def _pass(self, scope: Scope, body: _Body, send: Send) -> None:
        assert self._session is not None  # noqa: S101 - opened by `async with`.
        started = False
        try:
            async with self._session.request(
                scope["method"],
                self._url(scope),
                headers=_sent_headers(scope["headers"]),
                data=body.data(),
                allow_redirects=False,
            ) as response:
                await send(
                    {
                        "type": "http.response.start",
                        "status": response.status,
                        "headers": _passed_on(response.raw_headers),
                    }
                )
                started = True
                async for chunk in response.content.iter_any():
                    await send(_chunk(chunk, more=True))
            await send(_chunk(b"", more=False))
        except (aiohttp.ClientError, TimeoutError) as error:
            if started:
                raise BrokenOff from error
            await _answer(send, 502, _unreachable(error))

    def _url(self, scope: Scope) -> URL:
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        query = scope.get("query_string", b"").decode("latin-1")
        return URL(f"{self._upstream}{path}{'?' if query else ''}{query}", encoded=True)


class _Body:
    """The body of a request, and what comes after it: that the client leaves."""

    def __init__(self, first: Message, receive: Receive) -> None:
        self._first = first
        self._receive = receive
        self._read = asyncio.Event()
        if not first.get("more_body", False):
            self._read.set()

    def data(self) -> bytes | AsyncIterator[bytes] | None:
        """Return the body, or its packets as they come if there are several."""
        if self._read.is_set():
            return self._first.get("body", b"") or None
        return self._packets()

    async def until_client_leaves(self) -> None:
        """Return when the client has closed its connection."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _packets(self) -> AsyncIterator[bytes]:
        message = self._first
        while True:
            if message["type"] == "http.disconnect":
                raise aiohttp.ClientConnectionError("the client left")
            if data := message.get("body", b""):
                yield data
            if not message.get("more_body", False):
                break
            message = await self._receive()
        self._read.set()


async def _cancelled(*tasks: asyncio.Future[None]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _sent_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the headers of a request for the server; its host and its own connection differ."""
    pairs = _passed_on(headers)
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in pairs
        if name.lower() != b"host"
    ]


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    pairs = list(headers)
    named = {
        each.strip().lower()
        for name, value in pairs
        if name.lower() == b"connection"
        for each in value.split(b",")
    }
    left_out = _HOP_BY_HOP | named
    return [(name, value) for name, value in pairs if name.lower() not in left_out]


def _chunk(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _unreachable(error: Exception) -> str:
    """Return why the server did not answer, without what its URL or the request may hold."""
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or type(error.os_error).__name__
        return f"autotune capture cannot reach the upstream server: {reason}"
    if isinstance(error, TimeoutError):
        return f"the upstream server did not take a connection within {CONNECT_S:g} s"
    return f"the upstream server gave no answer: {type(error).__name__}"


async def _answer(send: Send, status: int, message: str) -> None:
    """Answer as an OpenAI-compatible server would, so that clients show the words."""
    body = json.dumps({"error": {"message": message, "type": "autotune_capture"}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send(_chunk(body, more=False))


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        body = b"autotune capture passes HTTP only, no websockets\n"
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        await send({"type": "websocket.http.response.start", "status": 501, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send({"type": "websocket.close", "code": 1011})
