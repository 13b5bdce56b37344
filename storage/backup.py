"""Copies of an SQLite file, made while it is in use, by SQLite's own means."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from storage.errors import StorageError, StorageUnavailable
from storage.spool import sync_folder

KEPT: Final = 2
"""How many copies there are: the newest is ``NAME.backup-1.db``."""

_BUSY_TIMEOUT_MS: Final = 5000
_MIB: Final = 2**20
_SPARE: Final = 64 * _MIB
"""Bytes that a copy leaves for what is written meanwhile."""


def backup_path(path: Path, number: int) -> Path:
    """Return where the copy of this number is, the newest being 1."""
    return path.with_name(f"{path.name}.backup-{number}.db")


def back_up(path: Path) -> Path:
    """Copy a database and return the path of the copy; the one before becomes number 2.

    The copy is whole or not there: it is checked, brought to the disk and then renamed. It is
    for whom the database is for.

    Raises:
        StorageUnavailable: It cannot be read or the copy not be written, or what was copied is
            damaged; the copies that there were are still there.
    """
    part = path.with_name(f"{path.name}.backup.part")
    try:
        _require_room(path)
        _copy(path, part)
        for number in range(KEPT - 1, 0, -1):
            with suppress(FileNotFoundError):
                backup_path(path, number).replace(backup_path(path, number + 1))
        newest = backup_path(path, 1)
        part.replace(newest)
        sync_folder(path.parent)
    except (sqlite3.Error, OSError) as error:
        _remove(part)
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageUnavailable(
            f"{path} cannot be copied: {reason}.", hint="Its earlier copies are as they were."
        ) from error
    except StorageError:
        _remove(part)
        raise
    return newest


def _require_room(path: Path) -> None:
    """Return if a copy fits; a disk that it filled would stop the study."""
    needed, found = path.stat().st_size + _SPARE, os.statvfs(path.parent)
    free = found.f_bavail * found.f_frsize
    if free < needed:
        raise StorageUnavailable(
            f"{path} cannot be copied: {needed / _MIB:.0f} MiB are needed and {free / _MIB:.0f} "
            f"MiB are free in {path.parent}.",
            hint="Free some disk space.",
            full=True,
        )


def _copy(path: Path, part: Path) -> None:
    _remove(part)
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with closing(sqlite3.connect(part)) as copy:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source:
                source.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
                # In one step: with a write-ahead log readers hinder no writer.
                source.backup(copy)
            # What is copied by number of pages has the journal of its source, a log of its own.
            copy.execute("PRAGMA journal_mode = DELETE")
            require_sound(copy, path)
        found = path.stat()
        os.fchmod(descriptor, found.st_mode & 0o777)
        if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(OSError):
                os.fchown(descriptor, found.st_uid, found.st_gid)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_sound(connection: sqlite3.Connection, path: Path) -> None:
    """Return if SQLite finds nothing wrong.

    Raises:
        StorageUnavailable: The database is damaged.
    """
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise StorageUnavailable(
            f"{path} is damaged: {'; '.join(found)}.", hint=restore_hint(path)
        )


def restore_hint(path: Path) -> str:
    """Say how a damaged database is replaced."""
    copies = [str(backup_path(path, number)) for number in range(1, KEPT + 1)]
    there = [copy for copy in copies if Path(copy).exists()]
    return f"End what uses it and put a copy back: {', '.join(there) or 'there is none'}."


def _remove(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink()


class Backups:
    """Copies of one database from time to time, which can fail without hurting anything.

    Args:
        path: Of the SQLite file; None for other databases, of which none is made.
        every_s: How often; None for never.
        say: Told of what failed.
        clock: Monotonic seconds.
        wall: The time of day, by which the last copy of an earlier run is known to be how old.
    """

    def __init__(
        self,
        path: Path | None,
        every_s: float | None,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._every_s = every_s
        self._say = say
        self._clock = clock
        self._last_s = clock() - (0.0 if path is None else _age_s(path, wall()) or 0.0)

    def when_due(self) -> None:
        """Make a copy if it is time for one."""
        if self._path is None or self._every_s is None:
            return
        now_s = self._clock()
        if now_s - self._last_s < self._every_s:
            return
        # Whatever comes of it: what fails now is tried again when the next one is due.
        self._last_s = now_s
        try:
            back_up(self._path)
        except StorageError as error:
            self._say(f"no copy of the database was made: {error.message} {error.hint}")


def _age_s(path: Path, now_s: float) -> float | None:
    """Return how old the newest copy is, None if there is none or clocks were set since."""
    with suppress(OSError):
        age_s = now_s - backup_path(path, 1).stat().st_mtime
        return age_s if age_s >= 0 else None
    return None
