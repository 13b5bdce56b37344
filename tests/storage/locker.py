"""Another process that holds the write lock of an SQLite file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def lock(path: Path, *, for_s: float) -> subprocess.Popen[bytes]:
    """Return a process that holds the lock by now, and ends after some seconds."""
    command = [sys.executable, "-S", "-c", _HOLD, str(path), str(for_s)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


@contextmanager
def locked(path: Path, *, for_s: float = 60.0) -> Iterator[None]:
    """Have the lock held within the block, for some seconds at most."""
    with lock(path, for_s=for_s) as holder:
        try:
            yield
        finally:
            holder.kill()
