"""Connections to the server that is asked, and which of them are asked again."""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

CONNECT_S = 10.0
KEEP_ALIVE_S = 2.0
"""Of idle connections to the server: less than the 5 s after which uvicorn closes them."""


class Refused(Exception):
    """A request is answered by the proxy itself: with a status, and why in words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


class NoAnswer(Refused):
    """The server gave none, or none that can be passed on."""

    def __init__(self, words: str) -> None:
        super().__init__(502, words)


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is asked.

    Attributes:
        host: its name or address.
        port: where it listens.
        tls: whether it is spoken to over TLS.
        named: what it is called in the header ``Host``.
        base: what stands before every path, without a slash at its end.
    """

    host: str
    port: int
    tls: bool
    named: bytes
    base: bytes

    @staticmethod
    def of(url: str) -> Target:
        """Return the server that ``parse_upstream`` found to be one."""
        parts = urlsplit(url)
        host, tls = parts.hostname or "", parts.scheme == "https"
        default = 443 if tls else 80
        port = parts.port or default
        named = f"[{host.partition('%')[0]}]" if ":" in host else host.encode("idna").decode()
        if port != default:
            named = f"{named}:{port}"
        return Target(host, port, tls, named.encode(), parts.path.encode())


class Listener(Protocol):
    """What takes the answer to a request."""

    def received(self, data: bytes) -> None:
        """Take bytes of the answer."""

    def ended(self) -> None:
        """Learn that the server writes no more."""

    def lost(self) -> None:
        """Learn that the connection is gone."""


class Connection(asyncio.Protocol):
    """A connection, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._listener: Listener | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to count."""
        self.transport = cast("asyncio.Transport", transport)
        self._pool.add(self)

    def listen(self, listener: Listener) -> None:
        """Have the answer to what is written from now on taken by ``listener``."""
        self._listener = listener

    def data_received(self, data: bytes) -> None:
        """Hand bytes over."""
        if self._listener is not None:
            self._listener.received(data)
        else:
            # An answer to nothing would be taken for that to the next request.
            self.transport.abort()

    def eof_received(self) -> None:
        """Tell it; the transport closes itself then."""
        if self._listener is not None:
            self._listener.ended()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's.
        """Tell it, and whoever waits to write."""
        self.resume_writing()
        self.woken()
        self._pool.discard(self)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.lost()

    def pause_writing(self) -> None:
        """Have ``drained`` wait from now on."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """End the wait of ``drained``."""
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def drained(self) -> None:
        """Wait while the server is slow to read."""
        if self._writable is not None:
            await self._writable

    def pause(self) -> None:
        """Read no more, so that the server has to wait."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def rest(self) -> None:
        """Wait for another request, for a while, if the server has read all of this one."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self._listener = None
        self._expiry = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self.transport.abort)
        self._pool.put_back(self)

    def woken(self) -> bool:
        """Return whether it can take another request."""
        if self._expiry is not None:
            self._expiry.cancel()
        return not self.transport.is_closing()


class Pool:
    """The connections to one server."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tls: ssl.SSLContext | None = None
        if target.tls:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._emptied: asyncio.Future[None] | None = None

    def add(self, connection: Connection) -> None:
        """Count a connection as open."""
        self._open.add(connection)

    def discard(self, connection: Connection) -> None:
        """Count it as open no longer."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._emptied is not None and not self._emptied.done() and not self._open:
            self._emptied.set_result(None)

    def put_back(self, connection: Connection) -> None:
        """Offer it for the next request."""
        self._idle.append(connection)

    def taken(self) -> Connection | None:
        """Return the idle connection that was used last, None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.woken():
                return connection
        return None

    async def opened(self) -> Connection:
        """Return a new connection.

        Raises:
            NoAnswer: the server was not reached.
        """
        target = self._target
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self),
                    target.host,
                    target.port,
                    ssl=self._tls,
                    server_hostname=target.host if target.tls else None,
                )
        except TimeoutError as error:
            words = f"the upstream server did not take a connection within {CONNECT_S:g} s"
            raise NoAnswer(words) from error
        except OSError as error:
            words = f"autotune capture cannot reach the upstream server: {_reason(error)}"
            raise NoAnswer(words) from error
        return connection

    async def close(self) -> None:
        """Close all connections, and wait until they are."""
        if not self._open:
            return
        self._emptied = asyncio.get_running_loop().create_future()
        for connection in tuple(self._open):
            connection.woken()
            connection.transport.abort()
        await self._emptied


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or type(error).__name__}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    # Of names that are not found.
    return error.strerror or type(error).__name__
