"""One request and its response, on a connection to the server."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

from autotune.traffic.capture.observe import Send
from autotune.traffic.capture.response import Response
from autotune.traffic.capture.upstream import Connection, NoAnswer

_CLOSED = "the upstream server gave no answer: it closed the connection"


class BrokenOff(Exception):
    """The server broke off in mid-response; the client's connection is closed likewise."""


class Exchange:
    """Passes a response on as it comes.

    What the server sends is given to ``send`` at once, within the call that the event loop makes
    for it, without a task that has to be woken. Only where ``send`` has to wait, since the client
    is slow to read, a task waits with it, and the server is not read from until it has ended.

    Args:
        connection: where the request is written.
        method: of the request.
        send: takes the messages of the response.

    Attributes:
        connection: the same.
        over: done when all of the response was passed on; else has ``NoAnswer``, ``BrokenOff`` or
            what ``send`` raised.
        silent: not a byte of an answer came.
    """

    def __init__(self, connection: Connection, method: str, send: Send) -> None:
        self.connection = connection
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.silent = True
        self._response = Response(method)
        self._send = send
        self._asked = False
        self._started = False
        self._passed = False
        self._waiting: asyncio.Future[None] | None = None

    def begin(self, data: bytes, *, more: bool) -> None:
        """Write the head of the request, and what there is of its body."""
        self.connection.listen(self)
        if self.connection.transport.is_closing():
            self.lost()
        else:
            self.write(data, more=more)

    def write(self, data: bytes, *, more: bool) -> None:
        """Write a part of the request."""
        self.connection.transport.write(data)
        self._asked = not more

    def received(self, data: bytes) -> None:
        """Pass a part of the response on."""
        if self.over.done():
            return
        self.silent = False
        try:
            self._response.feed(data)
        except NoAnswer as error:
            self._fail(error)
        else:
            self._pass_on()

    def ended(self) -> None:
        """Take the end of what the server sends."""
        self._response.end()
        if self._response.complete:
            self._pass_on()
        else:
            self._fail(NoAnswer(_CLOSED))

    def lost(self) -> None:
        """Take the end of the connection."""
        if not self._response.complete:
            self._fail(NoAnswer(_CLOSED))

    def close(self) -> None:
        """Give the server up if it is not done, which so learns of it."""
        if self._waiting is not None:
            self._waiting.cancel()
        if not self.over.done():
            self.over.cancel()
            self.connection.transport.abort()
        elif not self.over.cancelled():
            self.over.exception()
        self._response.close()

    def _pass_on(self) -> None:
        if self._waiting is not None or self.over.done():
            return
        sending = self._sending()
        try:
            waited = sending.send(None)
        except StopIteration:
            if self._passed:
                self._end(None)
        except (OSError, RuntimeError) as error:
            self._end(error)
        else:
            self.connection.pause()
            self._waiting = asyncio.ensure_future(_continued(sending, waited))
            self._waiting.add_done_callback(self._caught_up)

    async def _sending(self) -> None:
        response = self._response
        if response.status is None:
            return
        if not self._started:
            self._started = True
            await self._send(
                {
                    "type": "http.response.start",
                    "status": response.status,
                    "headers": response.headers,
                }
            )
        while not self._passed:
            data = response.taken()
            self._passed = response.complete
            if not data and not self._passed:
                return
            more = not self._passed
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def _caught_up(self, waiting: asyncio.Future[None]) -> None:
        self._waiting = None
        if waiting.cancelled() or self.over.done():
            return
        if (error := waiting.exception()) is not None:
            self._end(error)
            return
        self.connection.resume()
        self._pass_on()

    def _fail(self, error: NoAnswer) -> None:
        if not self.over.done():
            self._end(BrokenOff(error.words) if self._started else error)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
        if error is None and self._response.reusable and self._asked:
            self.connection.rest()
        else:
            self.connection.transport.abort()


@types.coroutine
def _continued(begun: Coroutine[Any, None, None], waited: Any) -> Generator[Any, None, None]:
    """Go on with a coroutine that was begun by hand, once what it waits for is done."""
    try:
        yield waited
        yield from begun
    finally:
        begun.close()
