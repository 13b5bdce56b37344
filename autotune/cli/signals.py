"""SIGINT, SIGTERM and SIGHUP as one exception, so that every ``finally`` runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked us to end; not an ``Exception``, so that nothing takes it for a failure."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block a signal ends us with one line, where there is nothing to tidy up.

    An exception would not do: Python drops those that come at some moments of an import.
    """

    def at_once(signum: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            os.write(2, f"{signal.Signals(signum).name}: stopped.\n".encode())
        os._exit(128 + signum)

    with _handled_by(at_once):
        yield


@contextmanager
def raised_signals() -> Iterator[None]:
    """Within the block the first signal raises ``Interrupted``, a second one ends at once."""

    def first(signum: int, _frame: FrameType | None) -> None:
        for each in _heeded():
            signal.signal(each, _at_once)
        raise Interrupted(signum)

    with _handled_by(first):
        yield


def _heeded() -> list[signal.Signals]:
    """Return the signals that we answer.

    One that was ignored when we were started stays so: ``nohup`` asks for that, and a shell does
    for SIGINT of what runs in the background of a script.
    """
    return [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {each: signal.signal(each, handler) for each in _heeded()}
    try:
        yield
    finally:
        for each, earlier in before.items():
            signal.signal(each, earlier)


def _at_once(signum: int, _frame: FrameType | None) -> None:
    # The engine host dies with us by its parent-death signal.
    os._exit(128 + signum)
