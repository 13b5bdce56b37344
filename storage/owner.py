"""Who holds a lease: a process, for certain, and on which machine."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_HOST_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds, or held, a lease.

    Attributes:
        owner: Its own for each lease, and nobody else's.
        host: Name of its machine, for people; two machines may have the same.
        machine: Which boot of which machine, and which numbering of processes there, as the
            kernel tells them apart.
        pid: Its number there.
        started_ticks: When it started, since pids are used again.
    """

    owner: str
    host: str
    machine: str
    pid: int
    started_ticks: int

    @classmethod
    def myself(cls) -> Owner:
        """Return this process, as a new owner."""
        pid = os.getpid()
        host = socket.gethostname()[:_HOST_CHARACTERS]
        return cls(uuid.uuid4().hex, host, machine(), pid, started_ticks(pid) or 0)

    @property
    def is_gone(self) -> bool:
        """Whether it runs no more; False where this cannot be known from here."""
        return self.machine == machine() and started_ticks(self.pid) != self.started_ticks


@cache
def machine() -> str:
    """Return what tells this boot of this machine, and this numbering of processes, apart."""
    parts = [str(uuid.getnode()), ""]
    with suppress(OSError):
        parts = [_BOOT_ID.read_text("ascii").strip(), str(_PID_NAMESPACE.readlink())]
    return "/".join(parts)


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine came up.

    None if there is none of this number, or one that has ended and is not yet waited for.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before it is in brackets, and may hold any character.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
