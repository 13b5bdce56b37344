"""Calls of a database that is locked, or down, for a while: repeated until it is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from storage.errors import StorageUnavailable

P = ParamSpec("P")
R = TypeVar("R")

HEARTBEAT_S: Final = 60.0
"""After which it is said again that the database is waited for."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


class Patience:
    """How long the database is waited for, and who is told so.

    Args:
        limit_s: How long a call is repeated; 0 for not at all.
        say: Told at the first failure, each minute, and when the database is back.
        clock: Monotonic seconds.
        pause: Waits for some seconds.
    """

    def __init__(
        self,
        limit_s: float,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit_s = limit_s
        self._say = say
        self._clock = clock
        self._pause = pause

    @property
    def waits(self) -> bool:
        """Whether anything is repeated at all."""
        return self._limit_s > 0

    def end(self) -> None:
        """Wait no more from now on: the program is to end."""
        self._limit_s = 0.0

    def steadily(self, work: Callable[[], R], *, mend: Callable[[], object] | None = None) -> R:
        """Return what ``work`` returns, repeated while the database cannot be used for now.

        Args:
            work: May be repeated after any failure, also one of which nobody knows whether it
                had been stored.
            mend: Called before each repetition, and repeated with it.

        Raises:
            StorageUnavailable: The database was not back in time, or its fault is no passing one.
        """
        try:
            return work()
        except StorageUnavailable as error:
            if not error.passing or not self.waits:
                raise
            fault = error
        return _Wait(self._limit_s, self._say, self._clock, self._pause).until_done(
            fault, lambda: _mended(work, mend)
        )


def _mended(work: Callable[[], R], mend: Callable[[], object] | None) -> R:
    if mend is not None:
        mend()
    return work()


class _Wait:
    """One time that the database is waited for."""

    def __init__(
        self,
        limit_s: float,
        say: Callable[[str], None],
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._limit_s = limit_s
        self._say = say
        self._clock = clock
        self._pause = pause
        self._began = self._spoke = clock()

    def until_done(self, fault: StorageUnavailable, work: Callable[[], R]) -> R:
        self._say(
            f"the database cannot be used for now, and is tried again for up to "
            f"{self._limit_s:.0f} s: {fault.message}"
        )
        pause_s = _FIRST_PAUSE_S
        while (waited_s := self._clock() - self._began) < self._limit_s:
            self._speak_each_minute(waited_s, fault)
            self._pause(min(pause_s, self._limit_s - waited_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                result = work()
            except StorageUnavailable as error:
                if not error.passing:
                    raise
                fault = error
            else:
                self._say(f"the database is back after {self._clock() - self._began:.0f} s")
                return result
        raise StorageUnavailable(
            f"{fault.message} It was tried again for {waited_s:.0f} s.",
            hint=f"{fault.hint} The same command goes on where this one ends.",
            url=fault.url,
        ) from fault

    def _speak_each_minute(self, waited_s: float, fault: StorageUnavailable) -> None:
        if self._clock() - self._spoke >= HEARTBEAT_S:
            self._spoke = self._clock()
            self._say(f"still waiting for the database, for {waited_s:.0f} s: {fault.message}")


IMPATIENT: Final = Patience(0.0, lambda _text: None)


class Patient(Protocol):
    """What has calls of a database and patience with it."""

    @property
    def patience(self) -> Patience: ...


Whose = TypeVar("Whose", bound=Patient)


def repeated(method: Callable[Concatenate[Whose, P], R]) -> Callable[Concatenate[Whose, P], R]:
    """Have a method, which is one transaction, repeated while the database cannot be used."""

    @wraps(method)
    def steady(self: Whose, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.patience.steadily(lambda: method(self, *args, **kwargs))

    return steady
