"""SIGINT, SIGTERM and SIGHUP as one exception, so that every ``finally`` runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_displays: list[Callable[[str], None]] = []
"""What redraws the terminal just now, and would wipe out a line of anybody else's."""

_listeners: list[Callable[[], None]] = []
"""Who has something to tell others before what runs is stopped."""


class Interrupted(BaseException):
    """A signal asked us to end; not an ``Exception``, so that nothing takes it for a failure."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


def end_on_signals() -> None:
    """Have a signal end us with one line, while there is nothing to tidy up: at both ends.

    An exception would not do: Python drops those that come at some moments of an import, and of
    its own end.
    """

    def at_once(signum: int, _frame: FrameType | None) -> None:
        _tell(f"{signal.Signals(signum).name}: stopped.\n")
        os._exit(128 + signum)

    for each in _heeded():
        signal.signal(each, at_once)


@contextmanager
def raised_signals() -> Iterator[None]:
    """Within the block the first signal raises ``Interrupted``, a second one ends at once.

    The first is acknowledged as it comes: stopping an engine takes seconds.
    """

    def first(signum: int, _frame: FrameType | None) -> None:
        for each in _heeded():
            signal.signal(each, _at_once)
        for listen in _listeners:
            listen()
        line = f"{signal.Signals(signum).name}: stopping; once more to end at once."
        for show in _displays:
            show(line)
        if not _displays:
            # On a terminal the line has ^C on it.
            _tell("\n" * os.isatty(2) + line + "\n")
        raise Interrupted(signum)

    with _handled_by(first):
        yield


@contextmanager
def put_off_signals(until: str) -> Iterator[None]:
    """Within the block the first signal says what is waited for, a second one ends at once.

    Args:
        until: what is done within the block, as a sentence.
    """

    def first(signum: int, _frame: FrameType | None) -> None:
        for each in _heeded():
            signal.signal(each, _at_once)
        _tell(f"{signal.Signals(signum).name}: {until}; once more to end at once.\n")

    with _handled_by(first):
        yield


@contextmanager
def shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Within the block have ``show`` say that we are stopping; it runs in a signal handler."""
    _displays.append(show)
    try:
        yield
    finally:
        _displays.remove(show)


@contextmanager
def heard_by(listen: Callable[[], None]) -> Iterator[None]:
    """Within the block tell ``listen`` of the first signal as it comes; it runs in its handler."""
    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)


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


def _tell(line: str) -> None:
    """Write to stderr past the stream, whose buffer may be in use just now."""
    with suppress(OSError):
        os.write(2, line.encode())


def _at_once(signum: int, _frame: FrameType | None) -> None:
    # The engine host dies with us by its parent-death signal.
    os._exit(128 + signum)
