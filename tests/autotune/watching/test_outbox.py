from __future__ import annotations

import threading
from dataclasses import dataclass, field

from autotune.watching.deliveries import DeliveryFailed
from autotune.watching.outbox import WAITING, Outbox


@dataclass(slots=True)
class Scripted:
    """Takes messages once it is let, and fails with what it is told to."""

    fault: str | None = None
    taken: list[str] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def deliver(self, message: str) -> None:
        self.begun.set()
        self.go_on.wait()
        if self.fault is not None:
            raise DeliveryFailed(self.fault)
        self.taken.append(message)

    def give_up(self) -> None:
        self.fault = "given up"
        self.go_on.set()


def free(fault: str | None = None) -> Scripted:
    scripted = Scripted(fault)
    scripted.go_on.set()
    return scripted


def test_every_message_goes_every_way_in_order() -> None:
    ways, said = [free(), free()], list[str]()
    outbox = Outbox(ways, complain=said.append)
    outbox.post("one")
    outbox.post("two")
    outbox.close()
    assert [each.taken for each in ways] == [["one", "two"]] * 2
    assert said == []


def test_one_that_fails_is_said_and_the_other_goes() -> None:
    bad, good, said = free("it answered 500"), free(), list[str]()
    outbox = Outbox([bad, good], complain=said.append)
    outbox.post("one")
    outbox.close()
    assert good.taken == ["one"]
    assert said == ["a message was not sent: it answered 500"]


def test_what_takes_too_long_is_ended_and_nothing_follows_it() -> None:
    slow, said = Scripted(), list[str]()
    outbox = Outbox([slow], complain=said.append, last_s=0.0)
    outbox.post("one")
    outbox.post("two")
    slow.begun.wait()
    outbox.close()
    outbox._thread.join()
    assert slow.taken == []
    assert said == ["messages were not all sent within 0 s: given up"]


def test_what_finds_no_room_is_dropped_and_said() -> None:
    slow, said = Scripted(), list[str]()
    outbox = Outbox([slow], complain=said.append, last_s=0.0)
    outbox.post("first")
    slow.begun.wait()
    for number in range(WAITING + 1):
        outbox.post(str(number))
    assert said == ["a message was not sent: earlier ones are still on their way"]
    outbox.close()
    outbox._thread.join()
    assert slow.taken == []
