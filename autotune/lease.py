"""One controller at a time for a study, one engine at a time for a GPU.

A lease is an advisory lock on a file. The kernel gives it back when its owner ends, however that
happens, so that there is nothing to expire and nothing to clean up. It binds the processes of one
machine, which is where the GPU and the log folder are.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import EnvironmentFault, LeaseHeld


@contextmanager
def lease(path: Path, what: str) -> Iterator[None]:
    """Hold ``path`` within the block.

    Raises:
        LeaseHeld: another process holds it; the message names that process.
        EnvironmentFault: the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EnvironmentFault(f"cannot make the lock {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LeaseHeld(
                f"{what} is in use by {_owner(descriptor)}",
                hint="wait until it ends, or end it",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _self().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def study_lock(log_folder: Path) -> Path:
    return log_folder / "lock"


def device_lock(device_uuid: str) -> Path:
    """Return the lock of a GPU, the same for every user of this machine."""
    plain = "".join(c for c in device_uuid if c.isalnum() or c == "-")
    return Path(tempfile.gettempdir()) / f"vllm-autotune-{plain}.lock"


def _self() -> str:
    return json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        # Its owner has locked the file and not written yet.
        return "another process"
