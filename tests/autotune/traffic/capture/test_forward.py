from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from autotune.errors import UsageError
from autotune.traffic.capture.forward import parse_upstream
from autotune.traffic.capture.observe import App, Message, Receive, Scope, Send
from tests.autotune.traffic.capture.stub import Stub, chunk, proxied, served

pytestmark = pytest.mark.wire

HOP = ("connection", "keep-alive", "transfer-encoding")


def with_proxy(
    app: App, talk: Callable[[httpx.AsyncClient, httpx.AsyncClient], Awaitable[None]]
) -> None:
    """Talk to a server directly and through the proxy."""

    async def run() -> None:
        async with (
            served(app) as upstream,
            proxied(upstream, lambda forward: forward) as address,
            httpx.AsyncClient(base_url=upstream) as direct,
            httpx.AsyncClient(base_url=address) as through,
        ):
            await talk(direct, through)

    asyncio.run(run())


def same_headers(response: httpx.Response) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, value in response.headers.multi_items()
        if name not in (*HOP, "date")
    ]


async def raw(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> Any:
    async with client.stream(method, path, **more) as response:
        data = b"".join([part async for part in response.aiter_raw()])
        return response.status_code, same_headers(response), data


CHAT = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 40}
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/chat/completions", {"json": {**CHAT, "stream": True}}),
    ("POST", "/v1/chat/completions", {"json": CHAT}),
    ("GET", "/gzip", {}),
    ("POST", "/echo", {"content": json.dumps({"big": "ä" * 300_000}).encode()}),
    ("POST", "/echo", {"content": gzip.compress(b"x" * 1000)}),
    ("POST", "/echo", {"content": bytes(4 * 2**20)}),
    ("POST", "/echo", {"content": b""}),
    ("PUT", "/echo", {"content": bytes(range(256))}),
    ("HEAD", "/gzip", {}),
    ("GET", "/nothing?a=%2F%20&b=ä", {}),
    ("POST", "/status/500", {"content": b"{}"}),
    ("GET", "/status/204", {}),
    ("GET", "/status/304", {}),
    ("DELETE", "/status/429", {}),
    ("OPTIONS", "/echo", {}),
]


def of_message(headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the headers that are not of a connection; a body of no bytes may be announced."""
    left_out = (b"host", b"connection", b"transfer-encoding")
    kept = {name: value for name, value in headers.items() if name not in left_out}
    return {name: kept[name] for name in kept if (name, kept[name]) != (b"content-length", b"0")}


def test_every_byte_comes_through_as_it_is() -> None:
    stub = Stub()

    async def talk(direct: httpx.AsyncClient, through: httpx.AsyncClient) -> None:
        for method, path, more in ASKED:
            expected = await raw(direct, method, path, **more)
            assert await raw(through, method, path, **more) == expected, (method, path)

    with_proxy(stub, talk)
    assert stub.requests[::2] == stub.requests[1::2]
    for ours, theirs in zip(stub.headers[::2], stub.headers[1::2], strict=True):
        assert of_message(ours) == of_message(theirs)


def test_packets_are_passed_on_at_once_in_both_directions() -> None:
    got, answer = asyncio.Event(), asyncio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        first = await receive()
        assert first["body"] == b"one"
        got.set()
        rest = b""
        while (message := await receive()).get("more_body", False):
            rest += message["body"]
        rest += message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(chunk(rest))
        await answer.wait()
        await send(chunk(b"end", more=False))

    async def talk(_direct: httpx.AsyncClient, through: httpx.AsyncClient) -> None:
        async def body() -> Any:
            yield b"one"
            # The server has the first packet before the second is written.
            await got.wait()
            yield b"two"

        async with through.stream("POST", "/echo", content=body()) as response:
            parts = response.aiter_raw()
            assert await anext(parts) == b"two"
            answer.set()
            assert b"".join([part async for part in parts]) == b"end"

    with_proxy(app, talk)


def test_headers_of_one_connection_are_not_passed_on() -> None:
    stub = Stub()

    async def talk(_direct: httpx.AsyncClient, through: httpx.AsyncClient) -> None:
        headers = {
            "Connection": "close, X-Mine",
            "X-Mine": "1",
            "X-Kept": "1",
            "TE": "trailers",
            "Authorization": "Bearer sk-x",
        }
        await through.post("/echo", headers=headers)

    with_proxy(stub, talk)
    (headers,) = stub.headers
    assert headers[b"x-kept"] == b"1"
    assert headers[b"authorization"] == b"Bearer sk-x"
    assert headers.keys().isdisjoint({b"x-mine", b"te", b"connection"})


def test_a_client_that_leaves_ends_the_request() -> None:
    stub = Stub()

    async def talk(_direct: httpx.AsyncClient, through: httpx.AsyncClient) -> None:
        asked = {**CHAT, "model": "endless", "stream": True}
        async with through.stream("POST", "/v1/chat/completions", json=asked) as response:
            await anext(response.aiter_raw())
        await asyncio.wait_for(stub.hold.wait(), 30)

    with_proxy(stub, talk)
    assert stub.left == 1


def test_a_server_that_breaks_off_breaks_off_for_the_client() -> None:
    async def talk(_direct: httpx.AsyncClient, through: httpx.AsyncClient) -> None:
        asked = {**CHAT, "model": "dies", "stream": True}
        with pytest.raises(httpx.RemoteProtocolError):
            await raw(through, "POST", "/v1/chat/completions", json=asked)

    with_proxy(Stub(), talk)


def test_a_server_that_is_not_there_is_told_in_words() -> None:
    async def run() -> httpx.Response:
        async with served(Stub()) as gone:
            pass
        async with (
            proxied(gone, lambda forward: forward) as address,
            httpx.AsyncClient(base_url=address) as client,
        ):
            return await client.post("/v1/chat/completions?key=sk-x", json=CHAT)

    response = asyncio.run(run())
    assert response.status_code == 502
    message = response.json()["error"]["message"]
    assert message.startswith("autotune capture cannot reach the upstream server: ")
    assert "sk-x" not in message


def test_a_server_that_answers_nothing_is_told_in_words() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ConnectionResetError

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def run() -> httpx.Response:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with (
            server,
            proxied(f"http://127.0.0.1:{port}", lambda forward: forward) as address,
            httpx.AsyncClient(base_url=address) as client,
        ):
            return await client.post("/v1/chat/completions", json=CHAT)

    response = asyncio.run(run())
    assert response.status_code == 502
    assert "gave no answer: it closed the connection" in response.text


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}])
def test_websockets_are_refused(extensions: dict[str, Any]) -> None:
    from autotune.traffic.capture.forward import Forward

    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "extensions": extensions}
    asyncio.run(Forward("http://127.0.0.1:1")(scope, receive, send))
    if extensions:
        assert sent[0]["status"] == 501
        assert b"no websockets" in sent[1]["body"]
    else:
        assert sent == [{"type": "websocket.close", "code": 1011}]


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://gateway.example/openai/v1", "https://gateway.example/openai"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_the_base_of_all_paths(given: str, base: str) -> None:
    assert parse_upstream(given) == base


@pytest.mark.parametrize(
    "given",
    [
        "127.0.0.1:8000", "ftp://host", "http://", "http://host:0", "http://host:99999",
        "http://user:sk-x@host", "http://host?key=sk-x", "http://host#x", "http://[::1",
    ],
)  # fmt: skip
def test_what_is_no_server_is_refused_without_its_secrets(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_upstream(given)
    assert "sk-x" not in caught.value.message + caught.value.hint
