"""Messages on their way: a short queue, and a thread that delivers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, Full, Queue

from autotune.watching.deliveries import Delivery, DeliveryFailed

WAITING = 16
"""Messages that may wait; a study has three."""
LAST_S = 10.0
"""How long the end of a study waits for them."""


class Outbox:
    """Delivers messages in order, each by every delivery, on a thread of its own.

    Args:
        deliveries: ways out.
        complain: says in a line that a message was not delivered; called from the thread.
        last_s: how long ``close`` waits.
    """

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        *,
        complain: Callable[[str], None],
        last_s: float = LAST_S,
    ) -> None:
        self._deliveries = tuple(deliveries)
        self._complain = complain
        self._last_s = last_s
        self._queue: Queue[str | None] = Queue(WAITING)
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="messages", daemon=True)
        self._thread.start()

    def post(self, message: str) -> None:
        """Have a message delivered; one that finds no room is dropped, and that said."""
        try:
            self._queue.put_nowait(message)
        except Full:
            self._complain("a message was not sent: earlier ones are still on their way")

    def close(self) -> None:
        """Wait for what is on its way, and end what takes too long."""
        try:
            self._queue.put_nowait(None)
        except Full:
            self._given_up.set()
        self._thread.join(self._last_s)
        if not self._thread.is_alive():
            return
        self._given_up.set()
        for each in self._deliveries:
            each.give_up()
        self._complain(f"messages were not all sent within {self._last_s:.0f} s: given up")

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            for each in self._deliveries:
                if self._given_up.is_set():
                    self._drain()
                    return
                self._deliver(each, message)

    def _deliver(self, delivery: Delivery, message: str) -> None:
        try:
            delivery.deliver(message)
        except DeliveryFailed as failure:
            if not self._given_up.is_set():
                self._complain(f"a message was not sent: {failure}")

    def _drain(self) -> None:
        while True:
            try:
                self._queue.get_nowait()
            except Empty:
                return
