"""The folder that captures lie in: one recorder at a time, one salt, nobody else's eyes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autotune.errors import EnvironmentFault, UsageError
from autotune.lease import lease
from autotune.traffic.capture.blocks import SALT_BYTES
from autotune.traffic.capture.part import SUFFIX
from autotune.user_files import read_small

SALT_NAME = ".salt"
LOCK_NAME = ".lock"

_SALT_FORM = f"a salt is {2 * SALT_BYTES} hexadecimal digits on a line"


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Make ``folder`` if need be, and keep other recorders out of it within the block.

    Raises:
        LeaseHeld: another recorder is at work there.
        EnvironmentFault: it cannot be made or written to.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"{folder}: cannot be made: {error.strerror}",
            hint="name a folder where you may write",
        ) from error
    with lease(folder / LOCK_NAME, f"the folder {folder}"):
        yield


def salt_of(folder: Path, salt_file: Path | None = None) -> bytes:
    """Return the salt of a folder, which is made once, or that of a file.

    Raises:
        UsageError: the file is missing, or has no salt in it.
        EnvironmentFault: a salt cannot be written.
    """
    path = folder / SALT_NAME if salt_file is None else salt_file
    if salt_file is None and not path.exists():
        _make_salt(path)
    try:
        salt = bytes.fromhex(read_small(path).strip())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a salt", hint=_SALT_FORM) from error
    if len(salt) != SALT_BYTES:
        raise UsageError(f"{path}: is no salt", hint=_SALT_FORM)
    return salt


def unfinished(folder: Path) -> list[Path]:
    """Return what recorders that crashed have left in a folder, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())


def _make_salt(path: Path) -> None:
    """Write a fresh salt, at once and for the owner alone."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SALT_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Another process may have made one meanwhile, and one salt is enough.
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise EnvironmentFault(
            f"{path}: cannot be written: {error.strerror}",
            hint="name a folder where you may write, with room on its disk",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
