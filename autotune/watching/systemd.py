"""What a service manager is told, by the protocol of ``sd_notify(3)``."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self

from autotune.watching.listener import Listener
from autotune.watching.progress import StudyProgress

STATUS_EVERY_S = 1.0

STOPPING_US = 30_000_000
"""How long stopping may take: engines get 20 s, messages 10."""
STARTING_US = 660_000_000
"""How long the study may take from one sign of life to the next until it is open: vLLM is asked
twice what it makes of the arguments, for 300 s at most."""

_PINGS_PER_WATCHDOG = 4


class ServiceManager(Listener):
    """Tells systemd, or whoever listens in its place, that the study is open, alive, at an end.

    Every ping follows from a sign of life of what makes progress; no thread sends any.

    Args:
        address: of the socket, as in ``NOTIFY_SOCKET``: a path, or ``@`` and an abstract name.
        progress: what the status says.
        watchdog_s: after so long without a ping we are taken for hung; None for never.
        clock: seconds that only grow.
    """

    trouble = "the service manager cannot be told of it"

    def __init__(
        self,
        address: str,
        progress: StudyProgress,
        *,
        watchdog_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._progress = progress
        self._ping_every_s = None if watchdog_s is None else watchdog_s / _PINGS_PER_WATCHDOG
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # One that does not read must not hold us up.
        self._socket.setblocking(False)
        self._ready = False
        self._pinged_at = self._status_at = -float("inf")

    @classmethod
    def of(cls, environ: Mapping[str, str], progress: StudyProgress) -> Self | None:
        """Return one for the service manager that has started us, None if none has."""
        address = environ.get("NOTIFY_SOCKET", "")
        if address[:1] not in ("/", "@") or len(address) == 1:
            return None
        return cls(address, progress, watchdog_s=_watchdog_s(environ))

    def changed(self) -> None:
        if self._progress.is_open and not self._ready:
            self._ready = self._send("READY=1")
        if self._progress.has_ended:
            self.stopping()
        self._tell_status()
        self.alive()

    def alive(self) -> None:
        now_s = self._clock()
        if now_s - self._status_at >= STATUS_EVERY_S:
            self._tell_status()
        every_s = self._ping_every_s if self._ready else STATUS_EVERY_S
        if every_s is None or now_s - self._pinged_at < every_s:
            return
        self._pinged_at = now_s
        if not self._ready:
            self._send(f"EXTEND_TIMEOUT_USEC={STARTING_US}")
        if self._ping_every_s is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={STOPPING_US}")

    def close(self) -> None:
        self._socket.close()

    def _tell_status(self) -> None:
        self._status_at = self._clock()
        self._send(f"STATUS={' '.join(self._progress.words().split())}")

    def _send(self, *lines: str) -> bool:
        """Return whether a message was taken."""
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except BlockingIOError:
            # It has more to read than it can keep; the next message says it again.
            return False
        return True


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return the interval of the watchdog, None if there is none, or it waits for another."""
    microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID")
    if not microseconds.isascii() or not microseconds.isdigit() or not int(microseconds):
        return None
    if pid is not None and pid != str(os.getpid()):
        return None
    return int(microseconds) / 1e6
