from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from autotune.traffic.capture.exchange import BrokenOff, Exchange
from autotune.traffic.capture.observe import Message
from autotune.traffic.capture.upstream import Connection, NoAnswer, Pool, Target

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", b"6")]}


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Wire:
    """What a connection does with its transport."""

    protocol: Connection

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.paused = False
        self.closed = False
        self.resumed = asyncio.Event()
        self.unsent_bytes = 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.resumed.set()

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Client:
    """Takes messages; they wait while it is slow."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.quick = asyncio.Event()
        self.quick.set()
        self.began = asyncio.Event()
        self.fault: Exception | None = None

    async def send(self, message: Message) -> None:
        await self.quick.wait()
        if self.fault is not None:
            raise self.fault
        self.got.append(message)
        if message["type"] == "http.response.body":
            self.began.set()


Case = Callable[["Talk"], Awaitable[None]]


class Talk:
    """An exchange whose request was written."""

    def __init__(self, *, more: bool = False) -> None:
        self.wire, self.client = Wire(), Client()
        self.pool = Pool(Target.of("http://127.0.0.1:1"))
        self.connection = self.wire.protocol = Connection(self.pool)
        self.connection.connection_made(cast("asyncio.Transport", self.wire))
        self.exchange = Exchange(self.connection, "POST", self.client.send)
        self.exchange.begin(b"request", more=more)

    def receive(self, *parts: bytes) -> None:
        for part in parts:
            self.connection.data_received(part)

    def lose(self) -> None:
        self.wire.closed = True
        self.connection.connection_lost(None)


def talk(case: Case, *, more: bool = False) -> None:
    async def run() -> None:
        talked = Talk(more=more)
        await case(talked)
        talked.exchange.close()
        await talked.pool.close()

    asyncio.run(run())


def test_a_response_is_passed_on_before_the_call_that_brings_it_returns() -> None:
    async def case(t: Talk) -> None:
        assert t.wire.written == [b"request"]
        t.receive(HEAD)
        assert t.client.got == [START]
        t.receive(b"012")
        assert t.client.got == [START, body(b"012")]
        t.receive(b"345")
        assert t.client.got[2:] == [body(b"345", more=False)]
        assert t.exchange.over.result() is None
        assert t.pool.taken() is t.connection

    talk(case)


def test_what_comes_together_is_passed_on_together() -> None:
    async def case(t: Talk) -> None:
        t.receive(CHUNKED + b"2\r\nab\r\n1\r\nc\r\n", b"1\r\nd\r\n0\r\n\r\n")
        assert t.client.got[1:] == [body(b"abc"), body(b"d", more=False)]

    talk(case)


def test_a_slow_client_has_the_server_wait() -> None:
    async def case(t: Talk) -> None:
        t.receive(HEAD)
        t.client.quick.clear()
        t.receive(b"01")
        assert t.wire.paused
        # This was read before.
        t.receive(b"23", b"4")
        assert t.client.got == [START]
        t.client.quick.set()
        await t.wire.resumed.wait()
        assert t.client.got == [START, body(b"01"), body(b"234")]
        t.receive(b"5")
        assert t.client.got[3:] == [body(b"5", more=False)]
        assert t.pool.taken() is t.connection

    talk(case)


def test_bytes_that_come_just_as_the_client_has_caught_up_are_not_held_back() -> None:
    async def case(t: Talk) -> None:
        t.client.quick.clear()
        t.receive(HEAD + b"01")
        t.client.quick.set()
        await t.client.began.wait()
        assert t.wire.paused
        t.receive(b"2345")
        await t.exchange.over
        assert t.client.got[2:] == [body(b"2345", more=False)]

    talk(case)


def test_a_slow_client_gets_all_of_a_response_whose_server_is_gone() -> None:
    async def case(t: Talk) -> None:
        t.client.quick.clear()
        t.receive(HEAD + b"012345")
        t.lose()
        t.client.quick.set()
        await t.exchange.over
        assert t.client.got == [START, body(b"012345", more=False)]

    talk(case)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("fault", [OSError("gone"), RuntimeError("Invalid HTTP header value.")])
def test_what_the_client_raises_ends_it(fault: Exception, slow: bool) -> None:
    async def case(t: Talk) -> None:
        t.client.fault = fault
        if slow:
            t.client.quick.clear()
        t.receive(HEAD)
        t.client.quick.set()
        with pytest.raises(type(fault)):
            await t.exchange.over
        assert t.wire.closed

    talk(case)


def test_a_client_that_leaves_while_it_is_slow_closes_the_connection() -> None:
    async def case(t: Talk) -> None:
        t.client.quick.clear()
        t.receive(HEAD)
        t.exchange.close()
        assert t.wire.closed
        t.client.quick.set()
        await asyncio.sleep(0)
        assert t.client.got == []

    talk(case)


@pytest.mark.parametrize(
    "breaks",
    [Talk.lose, lambda t: t.connection.eof_received(), lambda t: t.receive(b"no chunk")],
)
def test_a_server_that_breaks_off(breaks: Callable[[Talk], None]) -> None:
    async def case(t: Talk) -> None:
        t.receive(CHUNKED + b"2\r\n01\r\n")
        breaks(t)
        with pytest.raises(BrokenOff):
            t.exchange.over.result()
        assert t.client.got[1:] == [body(b"01")]

    talk(case)


@pytest.mark.parametrize("parts", [[], [HEAD[:20]]])
def test_a_server_that_closes_without_an_answer(parts: list[bytes]) -> None:
    async def case(t: Talk) -> None:
        t.receive(*parts)
        t.lose()
        with pytest.raises(NoAnswer, match="it closed the connection"):
            t.exchange.over.result()
        assert t.exchange.silent == (not parts)

    talk(case)


def test_a_connection_is_not_used_again_before_the_server_has_the_whole_request() -> None:
    async def early(t: Talk) -> None:
        t.receive(HEAD + b"012345")
        assert t.exchange.over.result() is None
        assert t.wire.closed

    async def unsent(t: Talk) -> None:
        t.wire.unsent_bytes = 1
        await early(t)

    talk(early, more=True)
    talk(unsent)


def test_the_request_waits_for_a_server_that_is_slow_to_read() -> None:
    async def case(t: Talk) -> None:
        await t.connection.drained()
        t.connection.pause_writing()
        waiting = asyncio.ensure_future(t.connection.drained())
        await asyncio.sleep(0)
        assert not waiting.done()
        t.connection.resume_writing()
        await waiting

    talk(case)
