"""What is particular to SQLite: a file, its write-ahead log, folders that are read-only."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection

from storage.errors import StorageUnavailable
from storage.faults import unavailable
from storage.masking import mask_url

BUSY_TIMEOUT_S: Final = 60
"""How long a writer waits for another one. Trials last minutes, so nothing else is urgent."""

SHORT_BUSY_TIMEOUT_S: Final = 2
"""The same where what fails is tried again: SQLite hears no signal while it waits."""

_WAL_PAUSE_S: Final = 0.02
_WAL_ATTEMPTS: Final = round(BUSY_TIMEOUT_S / _WAL_PAUSE_S)


class OpenedFile:
    """The SQLite file that an engine has open, to notice when another one takes its place.

    A path says nothing of that: SQLite goes on writing to a deleted file, without an error,
    and all of it is lost. The kernel gives no inode number anew while the file is open.
    """

    def __init__(self, url: URL) -> None:
        """Remember the file at the path of the URL, if it is SQLite's."""
        self._url = url.render_as_string()
        self._path = file_path(url)
        self._identity = self._at_path()

    def require_in_place(self) -> None:
        """Return if the file is still at its path, and for other databases.

        Raises:
            StorageUnavailable: If it was deleted or replaced, or cannot be looked up.
        """
        if self._path is not None and self._at_path() != self._identity:
            raise StorageUnavailable(
                f"{self._url} was deleted or replaced while in use.",
                hint="Put it back, or restore a copy, and run the same command again to resume.",
            )

    def _at_path(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = _found(self._path)
        except OSError as error:
            raise unavailable(self._url, error) from error
        return None if found is None else (found.st_dev, found.st_ino)


def file_path(url: URL) -> Path | None:
    """Return the absolute path of the file without symbolic links, None for other databases."""
    if url.get_backend_name() != "sqlite":
        return None
    # Unlike Path.resolve, this takes links in a circle as they are.
    return Path(os.path.realpath(str(url.database)))


def check_file(path: Path, *, url: str, create: bool) -> bool:
    """Return whether the file exists.

    Raises:
        StorageUnavailable: If its folder does not, if it does not and ``create`` is False, or if
            it is no regular file: SQLite would wait for who writes a pipe.
    """
    try:
        found, has_folder = _found(path), path.parent.is_dir()
    except OSError as error:
        raise unavailable(url, error) from error
    if found is None and not create:
        raise StorageUnavailable(
            f"There is no study database at {mask_url(url)}.",
            hint="Start a study with `autotune tune`, or name its database with --storage.",
        )
    if not has_folder:
        raise StorageUnavailable(
            f"Cannot create {path}: {path.parent} is no folder.",
            hint="Create the folder, or choose another file with --storage.",
        )
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise StorageUnavailable(
            f"Cannot use {mask_url(url)}: it is no regular file.",
            hint="Choose another file with --storage.",
        )
    return found is not None


def _found(path: Path) -> os.stat_result | None:
    """Return what is at a path, None for nothing.

    Raises:
        OSError: If it cannot be looked up.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_writable(path: Path) -> None:
    """Return if the file may be written, or made where there is none.

    Raises:
        StorageUnavailable: If the file or its folder may not be written.
    """
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise StorageUnavailable(
                f"Cannot write {path}: {'the file' if place == path else place} is read-only.",
                hint="Make the file and its folder writable, or choose another with --storage.",
            )


def reader_of(path: Path) -> Callable[[], sqlite3.Connection] | None:
    """Return what connects to a file that may not be written; None if it may be.

    SQLite makes files beside one with a write-ahead log even to read it. Where it cannot, it
    reads the log with the index that lies beside it. Without a log nobody has the file open to
    write, and it can be read as one that does not change.

    Raises:
        StorageUnavailable: If there is a log, and no index to read it by; or if that cannot be
            found out.
    """
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return None
    log, index = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        found_log, found_index = _found(log), _found(index)
    except OSError as error:
        raise unavailable(f"sqlite:///{path}", error) from error
    if found_log is None or found_log.st_size == 0:
        mode = "immutable=1"
    elif found_index is not None:
        mode = "mode=ro"
    else:
        raise StorageUnavailable(
            f"Cannot read {path}: {log.name} holds its latest records, and reading that makes "
            "files in a folder that is read-only.",
            hint="Copy both files to a folder that is writable, and name the copy with --storage.",
        )
    uri = f"{path.as_uri()}?{mode}"
    return lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)


def switch_to_wal(connection: sqlite3.Connection, _record: object) -> None:
    # WAL lets readers in while a trial is written. Asking first spares the exclusive lock that
    # setting the journal mode takes; SQLite does not wait for that one, so we do.
    with _closed_on_error(connection):
        for _ in range(_WAL_ATTEMPTS - 1):
            try:
                return _ensure_wal(connection)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                time.sleep(_WAL_PAUSE_S)
        return _ensure_wal(connection)


def configure(connection: sqlite3.Connection, _record: object) -> None:
    # FULL keeps the last commit through a power cut.
    _configure(connection, "FULL")


def configure_index(connection: sqlite3.Connection, _record: object) -> None:
    # NORMAL does not wait for the disk. All append to one log, of which a power cut leaves a
    # beginning, up to the last commit of ours at least: what is lost is as after a kill.
    _configure(connection, "NORMAL")


def leave_transactions_to_us(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None


def begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("autotune_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _configure(connection: sqlite3.Connection, synchronous: str) -> None:
    with _closed_on_error(connection):
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")


def _ensure_wal(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        connection.execute("PRAGMA journal_mode = WAL")


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    # The pool forgets a connection whose event failed, without closing it.
    try:
        yield
    except sqlite3.Error:
        connection.close()
        raise
