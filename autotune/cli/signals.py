"""SIGINT, SIGTERM and SIGHUP as one exception, so that every ``finally`` runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked us to end; not an ``Exception``, so that nothing takes it for a failure."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@contextmanager
def raised_signals() -> Iterator[None]:
    """Within the block the first signal raises ``Interrupted``, a second one ends at once.

    A signal that was ignored when we were started stays so: ``nohup`` asks for that, and a shell
    does for SIGINT of what runs in the background of a script.
    """
    heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]

    def first(signum: int, _frame: FrameType | None) -> None:
        for each in heeded:
            signal.signal(each, _at_once)
        raise Interrupted(signum)

    before = {each: signal.signal(each, first) for each in heeded}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _at_once(signum: int, _frame: FrameType | None) -> None:
    # The engine host dies with us by its parent-death signal.
    os._exit(128 + signum)
