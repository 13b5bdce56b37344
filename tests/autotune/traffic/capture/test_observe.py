from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from autotune.traffic.capture import observe
from autotune.traffic.capture.observe import (
    HEAD_BYTES,
    TAIL_BYTES,
    App,
    Message,
    Observed,
    Receive,
    Scope,
    Send,
)
from autotune.traffic.capture.sighting import Sighting
from tests.autotune.traffic.capture.stub import body_of, chunk

STREAM = [(b"content-type", b"text/event-stream")]


class Notes:
    """A notebook with some room."""

    def __init__(self, room_bytes: int = 10**9) -> None:
        self.room_bytes = room_bytes
        self.seen: list[Sighting] = []
        self.missed: list[str] = []

    def take(self, size: int) -> bool:
        if size > self.room_bytes:
            return False
        self.room_bytes -= size
        return True

    def give(self, size: int) -> None:
        self.room_bytes += size

    def put(self, item: Sighting) -> None:
        self.seen.append(item)

    def miss(self, reason: str) -> None:
        self.missed.append(reason)


def answering(
    packets: Sequence[bytes],
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    then: Callable[[Receive], object] | None = None,
    status: int = 200,
) -> App:
    """Return an application that reads the body and answers with these packets."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for packet in packets:
            await send(chunk(packet))
        if then is not None:
            if (await receive())["type"] == "http.disconnect":
                return
            raise ConnectionResetError
        await send(chunk(b"", more=False))

    return app


def pass_through(
    app: App,
    *,
    notes: Notes,
    body: Sequence[bytes] = (b'{"a": ', b"1}"),
    after: Message | None = None,
    path: str = "/v1/chat/completions",
    with_text: bool = False,
    send: Send | None = None,
) -> list[Message]:
    """Send a request through; time goes on by a second with each look at the clock."""
    sent: list[Message] = []
    messages: list[Message] = [
        {"type": "http.request", "body": part, "more_body": number < len(body) - 1}
        for number, part in enumerate(body)
    ]
    messages += [] if after is None else [after]

    async def receive() -> Message:
        return messages.pop(0)

    async def kept(message: Message) -> None:
        sent.append(message)

    ticks = iter(range(10**6))
    observed = Observed(
        app,
        notes,
        with_text=with_text,
        clock=lambda: 1000.0,
        timer=lambda: float(next(ticks)),
    )
    scope = {"type": "http", "method": "POST", "path": path}
    asyncio.run(observed(scope, receive, kept if send is None else send))
    assert observed.in_flight == 0
    return sent


def test_a_response_is_seen_and_not_changed() -> None:
    notes = Notes()
    packets = [b"data: 1\n", b"\ndata", b": 2\n\n: comment\n\n", b"data: [DONE]\n\n"]
    sent = pass_through(answering(packets, headers=STREAM), notes=notes)
    assert [each["body"] for each in sent[1:]] == [*packets, b""]
    (seen,) = notes.seen
    assert (seen.api, seen.arrival_s, seen.status, seen.way) == ("chat", 1000.0, 200, "ended")
    assert seen.body == b'{"a": 1}'
    assert seen.head == b"".join(packets)
    assert (seen.whole, seen.stream, seen.events) == (True, True, 3)
    assert seen.stamps == ((1000.0, 8), (2000.0, 13), (3000.0, 29), (4000.0, 43))
    assert seen.e2e_ms == 5000.0


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/v1/embeddings"])
def test_other_paths_pass_unseen(path: str) -> None:
    notes = Notes()
    sent = pass_through(answering([b"x"]), notes=notes, path=path)
    assert len(sent) == 3
    assert notes.seen == []


def test_of_a_long_response_both_ends_are_kept() -> None:
    notes = Notes()
    packets = [b"%07d\n" % number for number in range(20_000)]
    pass_through(answering(packets), notes=notes)
    (seen,) = notes.seen
    data = b"".join(packets)
    assert seen.head == data[:HEAD_BYTES]
    assert seen.tail == data[-TAIL_BYTES:]
    assert (seen.size, seen.whole) == (len(data), False)
    # The stamps end with the head.
    assert len(seen.stamps) == HEAD_BYTES // 8


def test_of_one_large_packet_the_end_is_kept() -> None:
    notes = Notes()
    data = bytes(range(256)) * 1000
    pass_through(answering([b"{", data]), notes=notes)
    assert (notes.seen[0].head, notes.seen[0].tail) == (b"{", data[-TAIL_BYTES:])


@pytest.mark.parametrize(
    ("headers", "with_text"), [([(b"Content-Encoding", b"gzip")], False), ([], True)]
)
def test_more_is_kept_where_the_beginning_is_not_enough(
    headers: list[tuple[bytes, bytes]], with_text: bool
) -> None:
    notes = Notes()
    app = answering([b"x" * 1000] * 500, headers=headers)
    pass_through(app, notes=notes, with_text=with_text)
    assert notes.seen[0].whole
    assert notes.seen[0].encoding == ("" if with_text else "gzip")
    assert notes.seen[0].held_bytes == 500_000 + 8
    assert notes.room_bytes == 10**9 - 500_008


def test_a_client_that_leaves_is_seen() -> None:
    notes = Notes()
    app = answering([b"data: 1\n\n"], headers=STREAM, then=lambda _receive: None)
    pass_through(app, notes=notes, after={"type": "http.disconnect"})
    assert notes.seen[0].way == "cancelled"
    assert notes.seen[0].e2e_ms == 2000.0


def test_a_client_that_leaves_while_it_is_sent_to_is_seen() -> None:
    notes = Notes()

    async def broken(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("the client is gone")

    with pytest.raises(OSError, match="gone"):
        pass_through(answering([b"data: 1\n\n"]), notes=notes, send=broken)
    assert notes.seen[0].way == "cancelled"


def test_an_application_that_breaks_off_is_seen() -> None:
    notes = Notes()
    app = answering([b"data: 1\n\n"], then=lambda _receive: None)
    with pytest.raises(ConnectionResetError):
        pass_through(app, notes=notes, after={"type": "http.request"})
    assert notes.seen[0].way == "broken"


def test_a_body_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "MAX_BODY_BYTES", 10)
    notes = Notes()
    pass_through(answering([b"x"]), notes=notes, body=[b"12345", b"67890", b"!"])
    assert notes.seen[0].body is None


@pytest.mark.parametrize("room_bytes", [10, HEAD_BYTES + TAIL_BYTES + 7])
def test_without_memory_requests_pass_unrecorded(room_bytes: int) -> None:
    notes = Notes(room_bytes)
    sent = pass_through(answering([b"x" * 5000] * 20), notes=notes)
    assert len(sent) == 22
    assert notes.seen == []
    assert notes.missed == ["the memory for recording was full"]
    assert notes.room_bytes == room_bytes


def test_other_protocols_pass() -> None:
    reached = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        reached.append(scope["type"])

    async def never() -> Message:
        raise AssertionError

    async def ignored(_message: Message) -> None:
        raise AssertionError

    asyncio.run(Observed(app, Notes())({"type": "lifespan"}, never, ignored))
    assert reached == ["lifespan"]
