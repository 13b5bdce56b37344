"""Messages on their way: a short queue, and a thread that delivers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Full, Queue

from autotune.watching.deliveries import Delivery, DeliveryFailed

WAITING = 16
"""Messages that may wait; a study has three."""
EARLIER_S = 5.0
LAST_S = 5.0
"""How long the end of a study waits for them: for those before the last one, and then for it."""


class Outbox:
    """Delivers messages in order, each by every delivery, on a thread of its own.

    Args:
        deliveries: ways out.
        complain: says in a line that a message was not delivered; called from the thread.
        earlier_s: how long ``close`` waits until it ends what is under way before the last one.
        last_s: how long it waits from then on.
    """

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        *,
        complain: Callable[[str], None],
        earlier_s: float = EARLIER_S,
        last_s: float = LAST_S,
    ) -> None:
        self._deliveries = tuple(deliveries)
        self._complain = complain
        self._earlier_s = earlier_s
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
        """Wait for what is on its way, and end what takes too long.

        An earlier message does not get all of the time: the last one says how the study ended.
        """
        try:
            self._queue.put_nowait(None)
        except Full:
            self._given_up.set()
        self._thread.join(self._earlier_s)
        # With the last one on its way, only the end stands behind it.
        if self._thread.is_alive() and self._queue.qsize() > 1:
            self._end_delivery()
        self._thread.join(self._last_s)
        if not self._thread.is_alive():
            return
        self._given_up.set()
        self._end_delivery()
        waited_s = self._earlier_s + self._last_s
        self._complain(f"messages were not all sent within {waited_s:.0f} s: given up")

    def _end_delivery(self) -> None:
        for each in self._deliveries:
            each.give_up()

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            for each in self._deliveries:
                if self._given_up.is_set():
                    return
                self._deliver(each, message)

    def _deliver(self, delivery: Delivery, message: str) -> None:
        try:
            delivery.deliver(message)
        except DeliveryFailed as failure:
            if not self._given_up.is_set():
                self._complain(f"a message was not sent: {failure}")
