"""Sees requests and responses pass through an ASGI application.

On the path of the traffic it keeps references to bytes, and times; nothing is parsed. What it
holds of a request is bounded: the body up to ``MAX_BODY_BYTES``, and the beginning and the end of
the response.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from autotune.traffic.capture.asked import Api, api_of
from autotune.traffic.capture.clock import now_s
from autotune.traffic.capture.recorder import MEMORY_FULL
from autotune.traffic.capture.sighting import Sighting, Way

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 8 * 2**20
HEAD_BYTES = 16 * 2**10
TAIL_BYTES = 32 * 2**10
LARGE_HEAD_BYTES = 2**20
"""Where the beginning is not enough: of compressed responses, and where texts are kept."""

_DATA = b"\ndata:"


class Notebook(Protocol):
    """Where sightings go: see ``autotune.traffic.capture.recorder.Recorder``."""

    def take(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be held."""

    def give(self, size: int) -> None:
        """Count ``size`` bytes as no longer held."""

    def put(self, item: Sighting) -> None:
        """Have a request recorded."""

    def miss(self, reason: str) -> None:
        """Note that a request passed unrecorded."""


class Observed:
    """An ASGI application whose requests are recorded; what passes is not changed.

    Args:
        app: the application.
        notebook: where sightings go.
        with_text: keep responses as a whole, up to ``LARGE_HEAD_BYTES``.
        clock: seconds since 1970.
        timer: seconds that only go forward.
    """

    def __init__(
        self,
        app: App,
        notebook: Notebook,
        *,
        with_text: bool = False,
        clock: Callable[[], float] = now_s,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._notebook = notebook
        self._with_text = with_text
        self._clock = clock
        self._timer = timer
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        api = api_of(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if api is None:
            await self._app(scope, receive, send)
            return
        seen = _Exchange(
            api, self._notebook, self._clock(), self._timer, with_text=self._with_text
        )
        self.in_flight += 1
        try:
            await self._app(scope, seen.receiving(receive), seen.sending(send))
        finally:
            self.in_flight -= 1
            seen.end()


class _Exchange:
    """One request and its response, while they pass."""

    def __init__(
        self,
        api: Api,
        notebook: Notebook,
        arrival_s: float,
        timer: Callable[[], float],
        *,
        with_text: bool,
    ) -> None:
        self._api = api
        self._notebook = notebook
        self._arrival_s = arrival_s
        self._timer = timer
        self._begun_s = timer()
        self._with_text = with_text
        self._held_bytes = 0
        self._kept = True
        self._body: list[bytes] | None = []
        self._body_bytes = 0
        self._status: int | None = None
        self._stream = False
        self._encoding = ""
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._head_limit = HEAD_BYTES
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._size = 0
        self._events = 0
        self._carried = b"\n"
        self._stamps: list[tuple[float, int]] = []
        self._complete = False
        self._client_left = False
        self._ended_s = self._begun_s
        self._hold(HEAD_BYTES + TAIL_BYTES)

    def receiving(self, receive: Receive) -> Receive:
        """Return ``receive`` as the application gets it."""

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                self._keep_body(message.get("body", b""))
            elif message["type"] == "http.disconnect" and not self._complete:
                self._client_left = True
                self._ended_s = self._timer()
            return message

        return received

    def sending(self, send: Send) -> Send:
        """Return ``send`` as the application gets it."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.body":
                self._keep_response(message)
            elif message["type"] == "http.response.start":
                self._keep_start(message)
            try:
                await send(message)
            except OSError:
                # What servers raise for a client that is gone.
                self._client_left = not self._complete
                raise

        return sent

    def end(self) -> None:
        """Hand over what was seen."""
        if not self._kept:
            self._notebook.give(self._held_bytes)
            self._notebook.miss(MEMORY_FULL)
            return
        way: Way = "broken"
        if self._complete:
            way = "ended"
        elif self._client_left:
            way = "cancelled"
        else:
            self._ended_s = self._timer()
        self._give_back_what_is_not_used()
        self._notebook.put(
            Sighting(
                api=self._api,
                arrival_s=self._arrival_s,
                body=None if self._body is None else b"".join(self._body),
                status=self._status,
                stream=self._stream,
                encoding=self._encoding,
                head=b"".join(self._head),
                tail=b"".join(self._tail),
                size=self._size,
                events=self._events,
                stamps=tuple(self._stamps),
                e2e_ms=(self._ended_s - self._begun_s) * 1e3,
                way=way,
                held_bytes=self._held_bytes,
            )
        )

    def _give_back_what_is_not_used(self) -> None:
        body_bytes = 0 if self._body is None else self._body_bytes
        unused = self._held_bytes - body_bytes - self._head_bytes - self._tail_bytes
        self._notebook.give(unused)
        self._held_bytes -= unused

    def _hold(self, size: int) -> bool:
        if not self._notebook.take(size):
            self._kept = False
            return False
        self._held_bytes += size
        return True

    def _keep_body(self, data: bytes) -> None:
        if self._body is None or not data or not self._kept:
            return
        self._body_bytes += len(data)
        if self._body_bytes > MAX_BODY_BYTES:
            # The request counts all the same, with its prefix unknown.
            self._body = None
        elif self._hold(len(data)):
            self._body.append(data)

    def _keep_start(self, message: Message) -> None:
        self._status = message["status"]
        for name, value in message.get("headers", ()):
            lowered = name.lower()
            if lowered == b"content-type":
                self._stream = value.lower().startswith(b"text/event-stream")
            elif lowered == b"content-encoding":
                self._encoding = value.decode("latin-1").strip().lower().replace("identity", "")
        if (self._encoding or self._with_text) and self._kept:
            more = LARGE_HEAD_BYTES - HEAD_BYTES
            if self._notebook.take(more):
                self._held_bytes += more
                self._head_limit = LARGE_HEAD_BYTES

    def _keep_response(self, message: Message) -> None:
        now_s = self._timer()
        data = message.get("body", b"")
        if data and self._kept and not self._client_left:
            self._keep_bytes(data, (now_s - self._begun_s) * 1e3)
        if not message.get("more_body", False) and not self._client_left:
            self._complete = True
            self._ended_s = now_s

    def _keep_bytes(self, data: bytes, moment_ms: float) -> None:
        self._size += len(data)
        if self._stream:
            text = self._carried + data
            self._events += text.count(_DATA)
            self._carried = text[-len(_DATA) + 1 :]
        if self._tail_bytes == 0 and self._head_bytes + len(data) <= self._head_limit:
            self._head.append(data)
            self._head_bytes += len(data)
            self._stamps.append((moment_ms, self._head_bytes))
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes > TAIL_BYTES:
            self._tail_bytes -= len(self._tail[0])
            excess = TAIL_BYTES - self._tail_bytes
            if excess > 0:
                # The end of the oldest packet still belongs to the tail.
                kept = self._tail.popleft()[-excess:]
                self._tail.appendleft(kept)
                self._tail_bytes += len(kept)
                break
            self._tail.popleft()
