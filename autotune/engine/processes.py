"""Processes that run, and groups of them that have to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

_TERM_GRACE_S = 5.0
_POLL_S = 0.05
_ENDED = frozenset("ZX")


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    state, _ = _state_and_group(pid)
    return state not in _ENDED


def end_group(leader: subprocess.Popen[Any]) -> None:
    """End a process group, which may outlive its leader, and reap the leader.

    It is asked first: multiprocessing's resource tracker ignores SIGTERM, unlinks the shared
    memory of the dead and ends by itself, but killed with them it would leave that behind.
    """
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + _TERM_GRACE_S
        while _group_runs(leader.pid) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


def _group_runs(group: int) -> bool:
    """Zombies do not count: an orphan may stay one for long where process 1 does not reap."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return any(
        found == group and state not in _ENDED for state, found in map(_state_and_group, pids)
    )


def _state_and_group(pid: int) -> tuple[str, int]:
    """Return the state letter of a process and its process group, ``("X", 0)`` if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    # The name, in parentheses, may hold anything.
    state, _parent, group = stat.rpartition(")")[2].split()[:3]
    return state, int(group)
