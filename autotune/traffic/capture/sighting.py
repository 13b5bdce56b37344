"""What the path of the traffic keeps of a request: bytes and times, unread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.traffic.capture.asked import Api

Way = Literal["ended", "cancelled", "broken"]
"""How the exchange ended: to its end, by a client that went, or by a server that broke off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One exchange, seen from outside.

    Attributes:
        api: the interface that was asked.
        arrival_s: when the request came, in seconds since 1970.
        body: of the request; None if it was too large to keep.
        status: of the response, None if there was none.
        stream: the response is a stream of events.
        encoding: how the response was compressed, empty if it was not.
        head: the first bytes of the response.
        tail: the last bytes of what followed.
        size: bytes of the whole response.
        events: lines of data that were counted in the stream.
        stamps: when bytes came, as ``(ms since the arrival, bytes by then)``, as far as the head.
        e2e_ms: from the arrival to the end.
        way: how it ended.
        held_bytes: what it holds of the recorder's memory.
    """

    api: Api
    arrival_s: float
    body: bytes | None
    status: int | None
    stream: bool
    encoding: str
    head: bytes
    tail: bytes
    size: int
    events: int
    stamps: tuple[tuple[float, int], ...]
    e2e_ms: float
    way: Way
    held_bytes: int = 0

    @property
    def whole(self) -> bool:
        """Whether head and tail are all of the response."""
        return len(self.head) + len(self.tail) == self.size
