"""One controller at a time for a study, one engine at a time for a GPU.

A lease is an advisory lock on a file. The kernel gives it back when its owner ends, however that
happens, so that there is nothing to expire and nothing to clean up. It binds the processes of one
machine, those of other users included.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import EnvironmentFault, LeaseHeld
from storage.database import sqlite_path

LOCKS = Path("/tmp")  # noqa: S108 - one place for all users; TMPDIR may differ between jobs.

_WRITABLE = "the folder of the database must be writable"
# A link would have its target overwritten, and a pipe be waited for: anybody may put either
# into the folder of all locks.
_AS_IT_IS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def lease(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold ``path`` within the block; ``wait`` for whoever holds it now.

    Raises:
        LeaseHeld: another process holds it; the message names that process.
        EnvironmentFault: the file cannot be made, or is no regular file of its own.
    """
    descriptor, ours = _open(path)
    try:
        found = os.fstat(descriptor)
        # A second name is a file of somebody's that would be overwritten, as through a link.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise _no_file(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LeaseHeld(
                f"{what} is in use by {_owner(descriptor)}",
                hint="wait until it ends, or end it",
            ) from error
        if ours:
            _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the lock file, made if need be, and whether it can be written."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | _AS_IT_IS, 0o644), True
    except PermissionError:
        # Another user's file can be locked without being written.
        pass
    except OSError as error:
        raise _unusable("make", path, error) from error
    try:
        return os.open(path, os.O_RDONLY | _AS_IT_IS), False
    except OSError as error:
        raise _unusable("open", path, error) from error


def _unusable(verb: str, path: Path, error: OSError) -> EnvironmentFault:
    if path.is_symlink() or error.errno in (errno.EISDIR, errno.ENXIO):
        return _no_file(path)
    return EnvironmentFault(f"cannot {verb} the lock {path}: {error.strerror}", hint=_WRITABLE)


def _no_file(path: Path) -> EnvironmentFault:
    return EnvironmentFault(
        f"the lock {path} is no regular file of its own",
        hint=f"somebody else put it there; look at it with `ls -l {path}`, then remove it",
    )


def study_lock(url: str, name: str) -> Path:
    """Return the lock of a study: beside its SQLite file, else in the folder of all locks."""
    file = sqlite_path(url)
    if file is not None:
        return file.with_name(f"{file.name}-{_digest(name)}.lock")
    return LOCKS / f"vllm-autotune-{_digest(url, name)}.lock"


def database_lock(url: str) -> Path:
    """Return the lock under which a database gets its tables."""
    file = sqlite_path(url)
    if file is not None:
        return file.with_name(f"{file.name}.lock")
    return LOCKS / f"vllm-autotune-{_digest(url)}.lock"


def _digest(*texts: str) -> str:
    joined = "\n".join(texts).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(joined, digest_size=4).hexdigest()


def device_lock(device_uuid: str) -> Path:
    """Return the lock of a GPU, the same for every user of this machine."""
    plain = "".join(c for c in device_uuid if c.isalnum() or c == "-")
    return LOCKS / f"vllm-autotune-{plain}.lock"


def _sign(descriptor: int) -> None:
    """Write who holds the lock; a full disk makes the name unknown and the lock no weaker."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _self().encode(), 0)


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
    except (ValueError, KeyError, TypeError, RecursionError):
        # Its owner has locked the file and not written yet, or somebody else has written.
        return "another process"
