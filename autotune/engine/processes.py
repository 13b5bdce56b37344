"""Processes that run, and groups of them that have to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_TERM_GRACE_S = 5.0
_TRACKER_GRACE_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Status:
    """What the kernel says of a process that runs: its group, and if SIGTERM is ignored."""

    group: int
    deaf: bool

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return None if there is no such process or it is a zombie."""
        try:
            lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
            group = os.getpgid(pid)
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields["State"][0] in "ZX":
            return None
        ignored = int(fields["SigIgn"], 16)
        return cls(group, deaf=bool(ignored >> (signal.SIGTERM - 1) & 1))


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return _Status.of(pid) is not None


def end_group(leader: subprocess.Popen[Any]) -> None:
    """End a process group, which may outlive its leader, and reap the leader.

    All are asked first, then killed, except those that are deaf to the request:
    multiprocessing's resource tracker is, for it has to unlink the shared memory of the others
    when they are dead. It is killed last, if it does not end by itself.
    """
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGTERM)
        if not _ends_within(leader.pid, _TERM_GRACE_S):
            for pid, status in _members(leader.pid).items():
                if not status.deaf:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            _ends_within(leader.pid, _TRACKER_GRACE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


def _ends_within(group: int, grace_s: float) -> bool:
    """Zombies do not count: an orphan may stay one for long where process 1 does not reap."""
    deadline_s = time.monotonic() + grace_s
    while _members(group):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _members(group: int) -> dict[int, _Status]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    statuses = ((pid, _Status.of(pid)) for pid in pids)
    return {pid: status for pid, status in statuses if status and status.group == group}
