"""Waiting for processes by their identity, so that a pid used again is no survivor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil


def script(source: str, *arguments: object) -> Sequence[str]:
    """Return the command that runs a Python source with arguments."""
    return [sys.executable, "-c", source, *map(str, arguments)]


def spawn(source: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python source; its output can be read line by line."""
    return subprocess.Popen(script(source, *arguments), stdout=subprocess.PIPE, text=True)


def read_pids(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes whose pids a script prints in its first line."""
    assert process.stdout is not None
    return [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]


def end(process: subprocess.Popen[str], signum: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal, reap the process and close its pipe."""
    process.send_signal(signum)
    process.wait(timeout=10)
    if process.stdout is not None:
        process.stdout.close()


def survivors(processes: Iterable[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Return those that still run after ``timeout_s``; a zombie has ended."""
    deadline_s = time.monotonic() + timeout_s
    return [process for process in processes if not _ends_before(process, deadline_s)]


def group_survivors(group: int, *, timeout_s: float) -> list[psutil.Process]:
    """Return what still runs in a process group after ``timeout_s``, late comers included."""
    deadline_s = time.monotonic() + timeout_s
    while members := members_of(group):
        if left := survivors(members, timeout_s=deadline_s - time.monotonic()):
            return left
    return []


def members_of(group: int) -> list[psutil.Process]:
    """Return the processes of a group that run."""
    return [process for process in psutil.process_iter() if _runs_in(process, group)]


def shared_memory_of(processes: Iterable[psutil.Process]) -> set[Path]:
    """Return the POSIX shared memory that the processes have mapped and not unlinked."""
    mapped = (each.path for process in processes for each in process.memory_maps())
    return {Path(path) for path in mapped if path.startswith("/dev/shm/") and Path(path).exists()}


def orphaned_shared_memory() -> set[Path]:
    """Return Python's POSIX shared memory that no process has mapped any more."""
    segments = list(Path("/dev/shm").glob("psm_*"))
    mapped: set[Path] = set()
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            mapped |= shared_memory_of([process])
    return {path for path in segments if path not in mapped and path.exists()}


def _runs_in(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def _ends_before(process: psutil.Process, deadline_s: float) -> bool:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        # The descriptor is that of another process if the pid was used again in between.
        if not process.is_running():
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000))
    finally:
        os.close(descriptor)
