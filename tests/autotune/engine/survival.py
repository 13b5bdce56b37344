"""Waiting for processes by their identity, so that a pid used again is no survivor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

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
