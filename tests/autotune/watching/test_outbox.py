from __future__ import annotations

import threading
from collections.abc import Sequence

from autotune.watching.deliveries import DeliveryFailed
from autotune.watching.outbox import WAITING, Outbox


class Scripted:
    """Takes messages once it is let, unless it is told to fail, or to give one up."""

    def __init__(self, fault: str | None = None, *, slow: Sequence[str] = ()) -> None:
        self.taken: list[str] = []
        self.begun = threading.Event()
        self._fault = fault
        self._slow = slow
        self._given_up = threading.Semaphore(0)

    def deliver(self, message: str) -> None:
        self.begun.set()
        if message in self._slow:
            self._given_up.acquire()
            raise DeliveryFailed(f"{message} took too long")
        if self._fault is not None:
            raise DeliveryFailed(self._fault)
        self.taken.append(message)

    def give_up(self) -> None:
        self._given_up.release()


def test_every_message_goes_every_way_in_order() -> None:
    ways, said = [Scripted(), Scripted()], list[str]()
    outbox = Outbox(ways, complain=said.append)
    outbox.post("one")
    outbox.post("two")
    outbox.close()
    assert [each.taken for each in ways] == [["one", "two"]] * 2
    assert said == []


def test_one_that_fails_is_said_and_the_other_goes() -> None:
    bad, good, said = Scripted("it answered 500"), Scripted(), list[str]()
    outbox = Outbox([bad, good], complain=said.append)
    outbox.post("one")
    outbox.close()
    assert good.taken == ["one"]
    assert said == ["a message was not sent: it answered 500"]


def test_an_earlier_message_that_takes_too_long_makes_room_for_the_last() -> None:
    way, said = Scripted(slow=["first"]), list[str]()
    outbox = Outbox([way], complain=said.append, earlier_s=0.0, last_s=60.0)
    outbox.post("first")
    outbox.post("last")
    way.begun.wait()
    outbox.close()
    outbox._thread.join()
    assert way.taken == ["last"]
    assert said == ["a message was not sent: first took too long"]


def test_the_last_one_has_all_of_the_time_and_is_ended_then() -> None:
    way, said = Scripted(slow=["last"]), list[str]()
    outbox = Outbox([way], complain=said.append, earlier_s=0.0, last_s=0.0)
    outbox.post("last")
    way.begun.wait()
    outbox.close()
    outbox._thread.join()
    assert way.taken == []
    assert said == ["messages were not all sent within 0 s: given up"]


def test_what_finds_no_room_is_dropped_and_said() -> None:
    way, said = Scripted(slow=["first"]), list[str]()
    outbox = Outbox([way], complain=said.append, earlier_s=0.0, last_s=0.0)
    outbox.post("first")
    way.begun.wait()
    for number in range(WAITING + 1):
        outbox.post(str(number))
    assert said == ["a message was not sent: earlier ones are still on their way"]
    outbox.close()
    outbox._thread.join()
