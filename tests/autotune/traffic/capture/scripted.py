"""A server that answers what a test wrote, byte for byte, and a client that asks so."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Self

from tests.autotune.traffic.capture.stub import proxied

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSES = b"<closes>"
"""At the end of an answer: the server closes the connection after it."""

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"


class Scripted:
    """Answers requests in their order.

    Attributes:
        heads: of the requests that came, for each connection.
        came: set when a request has come.
        gone: set when a connection has been closed by the proxy.
        writers: of the connections.
    """

    def __init__(
        self, answers: Sequence[bytes] = (), *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._answers = list(answers)
        self._tls = tls
        self.writers: list[asyncio.StreamWriter] = []
        self.heads: list[list[bytes]] = []
        self.came = asyncio.Event()
        self.gone = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        heads: list[bytes] = []
        self.heads.append(heads)
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                self.came.set()
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                answer = self._answers.pop(0) if self._answers else OK
                if b"early" not in head:
                    await reader.readexactly(int(length or b"0"))
                writer.write(answer.removesuffix(CLOSES))
                if answer.endswith(CLOSES):
                    writer.close()
        self.gone.set()


@asynccontextmanager
async def asked(server: Scripted, *, host: str = "http://127.0.0.1") -> AsyncIterator[Client]:
    """Have a client ask ``server`` through the proxy within the block."""
    async with server, proxied(f"{host}:{server.port}", lambda forward: forward) as address:
        yield Client(int(address.rpartition(":")[2]))


class Client:
    """Asks on a connection of its own each time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, request: bytes, *more: bytes) -> bytes:
        """Return all that comes until the connection is closed, which the request asks for."""
        reader, writer = await self.opened()
        writer.write(request.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        for each in more:
            await asyncio.sleep(0)
            writer.write(each)
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return data


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1])
