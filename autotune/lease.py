"""One controller at a time for a study, one engine at a time for a GPU.

A lease is an advisory lock on a file. The kernel gives it back when its owner ends, however that
happens, so that there is nothing to expire and nothing to clean up. It binds the processes of one
machine, those of other users included.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import EnvironmentFault, LeaseHeld

LOCKS = Path("/tmp")  # noqa: S108 - one place for all users; TMPDIR may differ between jobs.


@contextmanager
def lease(path: Path, what: str) -> Iterator[None]:
    """Hold ``path`` within the block.

    Raises:
        LeaseHeld: another process holds it; the message names that process.
        EnvironmentFault: the file cannot be made.
    """
    descriptor, ours = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LeaseHeld(
                f"{what} is in use by {_owner(descriptor)}",
                hint="wait until it ends, or end it",
            ) from error
        if ours:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _self().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the lock file, made if need be, and whether it can be written."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644), True
    except PermissionError:
        # Another user's file can be locked without being written.
        pass
    except OSError as error:
        raise EnvironmentFault(f"cannot make the lock {path}: {error.strerror}") from error
    try:
        return os.open(path, os.O_RDONLY), False
    except OSError as error:
        raise EnvironmentFault(f"cannot open the lock {path}: {error.strerror}") from error


def study_lock(url: str, name: str) -> Path:
    """Return the lock of a study: beside its SQLite file, else in the folder of all locks."""
    digest = hashlib.blake2b(f"{url}\n{name}".encode("utf-8", "surrogateescape"), digest_size=4)
    prefix = "sqlite:///"
    if url.startswith(prefix):
        file = Path(url.removeprefix(prefix).partition("?")[0]).resolve()
        named = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=4)
        return file.with_name(f"{file.name}-{named.hexdigest()}.lock")
    return LOCKS / f"vllm-autotune-{digest.hexdigest()}.lock"


def device_lock(device_uuid: str) -> Path:
    """Return the lock of a GPU, the same for every user of this machine."""
    plain = "".join(c for c in device_uuid if c.isalnum() or c == "-")
    return LOCKS / f"vllm-autotune-{plain}.lock"


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
