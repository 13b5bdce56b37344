"""Opens the one database that holds Optuna's tables and ours."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from storage import migrate
from storage.errors import StorageError, StorageUnavailable

DEFAULT_URL: Final = "sqlite:///autotune.db"
BUSY_TIMEOUT_S: Final = 60
"""How long a writer waits for another one. Trials last minutes, so nothing else is urgent."""

_WAL_PAUSE_S: Final = 0.02
_WAL_ATTEMPTS: Final = round(BUSY_TIMEOUT_S / _WAL_PAUSE_S)

# In texts that are no URL: better too much than too little.
_PASSWORD = re.compile(r"^((?:[\w+]+:/+)?[^:/@]*:)(?!//).+@")
_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)
_SECRET_KEY = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_SQLITE_DRIVERS: Final = ("sqlite", "sqlite+pysqlite")
_URL_HINT = "Write sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME."
_HINTS: Final = (
    ("locked", "Another program holds the database; stop it or wait, then run this again."),
    ("full", "Free some disk space; nothing that was stored before is lost."),
    ("not a database", "Choose another file with --storage."),
    ("malformed", "Restore it from a copy, or choose another file with --storage."),
    ("readonly", "Make the file and its folder writable, or choose another with --storage."),
    ("too long", "Choose a file with a shorter name with --storage."),
    ("unable to open", "Make the folder writable, or choose another file with --storage."),
)


def resolve_url(option: str | None, environ: Mapping[str, str]) -> str:
    """Return the URL of ``--storage``, AUTOTUNE_STORAGE or OPTUNA_STORAGE, else the default."""
    return (
        option or environ.get("AUTOTUNE_STORAGE") or environ.get("OPTUNA_STORAGE") or DEFAULT_URL
    )


def mask_url(url: str) -> str:
    """Return the URL with its password, and secrets among its parameters, as ``***``."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1***@", url))
    secret = {key: "***" for key in parsed.query if _SECRET_KEY.search(key)}
    masked = parsed.update_query_dict(secret).render_as_string(hide_password=True)
    return masked.replace("%2A%2A%2A", "***")


def open_database(url: str, *, create: bool = True) -> Engine:
    """Open the database and bring our tables up to date; the caller disposes of the engine.

    Transactions of ``engine.execution_options(autotune_write=True)`` take SQLite's write lock
    at their start, so that what they read stays true until they commit.

    Args:
        url: An SQLAlchemy URL of SQLite (a file) or PostgreSQL.
        create: Whether to create what is missing. Commands that only read say False.

    Raises:
        StorageUnavailable: If it cannot be opened; if it holds no tables of ours and
            ``create`` is False.
        NewerSchema: If a later version wrote it.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        _check_file(Path(str(parsed.database)), url=url, create=create)
    engine = _engine(parsed, url, wal=create)
    try:
        with translated_errors(url):
            if not create:
                _require_tables(engine, url)
            migrate.ensure_schema(engine)
    except StorageError:
        engine.dispose()
        raise
    return engine


def parse_url(url: str) -> URL:
    """Return the parsed URL.

    Raises:
        StorageUnavailable: If it is no URL, or not one of a database that can hold a study.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is no number.
        raise StorageUnavailable(
            f"{mask_url(url)!r} is no database URL.", hint=_URL_HINT
        ) from error
    if backend not in {"sqlite", "postgresql"}:
        raise StorageUnavailable(
            f"Databases of kind {backend!r} are not supported: {mask_url(url)}.", hint=_URL_HINT
        )
    if backend == "sqlite":
        _require_plain_file(parsed, url)
    return parsed


def sqlite_path(url: str) -> Path | None:
    """Return the absolute path of the SQLite file, without symbolic links.

    However the URL is spelt, the path of a file is the same. The file need not exist. None for
    other databases.

    Raises:
        StorageUnavailable: As ``parse_url`` does.
    """
    return _file_path(parse_url(url))


def engine_options(url: URL, *, wal: bool = True) -> dict[str, Any]:
    """Return what ``create_engine`` needs for this database, for Optuna's engine and ours.

    SQLite keeps the journal mode in the file: ``wal=False`` leaves the file as it is.
    """
    if url.get_backend_name() == "sqlite":
        return {
            "connect_args": {"timeout": BUSY_TIMEOUT_S},
            "pool_events": [(_switch_to_wal, "connect")] * wal + [(_configure_sqlite, "connect")],
            "hide_parameters": True,
        }
    # Servers drop connections that were idle for as long as a trial takes.
    return {"pool_pre_ping": True, "hide_parameters": True}


class OpenedFile:
    """The SQLite file that an engine has open, to notice when another one takes its place.

    A path says nothing of that: SQLite goes on writing to a deleted file, without an error,
    and all of it is lost. The kernel gives no inode number anew while the file is open.
    """

    def __init__(self, url: URL) -> None:
        """Remember the file at the path of the URL, if it is SQLite's."""
        self._url = url.render_as_string()
        self._path = _file_path(url)
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
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(self._url, error) from error
        return found.st_dev, found.st_ino


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turn errors of SQLAlchemy and its drivers into ours, without passwords."""
    try:
        yield
    except IntegrityError as error:
        raise StorageError(
            f"The database refused a record: {error.orig}.",
            hint="Another program may be writing the same study.",
        ) from error
    except SQLAlchemyError as error:
        raise unavailable(url, error) from error


def unavailable(url: str, error: Exception) -> StorageUnavailable:
    """Return the error that says why the database cannot be used, and what to do."""
    spoken = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
    reason = str(spoken).strip().rstrip(".")
    password = make_url(url).password
    if password:
        reason = reason.replace(str(password), "***")
    hint = next((hint for word, hint in _HINTS if word in reason), "")
    return StorageUnavailable(
        f"Cannot use {mask_url(url)}: {reason}.",
        hint=hint or "Check that the database can be reached, or choose another with --storage.",
    )


def missing_driver(url: str) -> StorageUnavailable:
    """Return the error for a database whose Python driver is not installed."""
    return StorageUnavailable(
        f"The driver for {mask_url(url)} is not installed.",
        hint="Run `pip install 'psycopg[binary]'` and write postgresql+psycopg://….",
    )


def _require_plain_file(parsed: URL, url: str) -> None:
    if (parsed.database or ":memory:").startswith((":memory:", "file:")):
        raise StorageUnavailable(
            f"{mask_url(url)} is not a plain file.",
            hint="Optuna and autotune share the database: write sqlite:///PATH.",
        )
    if parsed.drivername not in _SQLITE_DRIVERS:
        raise StorageUnavailable(
            f"The driver of {mask_url(url)} is not supported.",
            hint="Only Python's own, synchronous sqlite driver is: write sqlite:///PATH.",
        )
    if "?" in url:
        raise StorageUnavailable(
            f"{mask_url(url)} has parameters, which are not supported for SQLite.",
            hint="Write sqlite:///PATH without the question mark and what follows it.",
        )


def _engine(parsed: URL, url: str, *, wal: bool) -> Engine:
    try:
        engine = create_engine(parsed, **engine_options(parsed, wal=wal))
    except (ImportError, NoSuchModuleError) as error:
        raise missing_driver(url) from error
    except (ArgumentError, ValueError) as error:
        raise unavailable(url, error) from error
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _leave_transactions_to_us)
        event.listen(engine, "begin", _begin)
    return engine


def _file_path(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite":
        return None
    # Unlike Path.resolve, this takes links in a circle as they are.
    return Path(os.path.realpath(str(url.database)))


def _check_file(path: Path, *, url: str, create: bool) -> None:
    try:
        missing, has_folder = not path.exists(), path.parent.is_dir()
    except OSError as error:
        raise unavailable(url, error) from error
    if missing and not create:
        raise StorageUnavailable(
            f"There is no study database at {mask_url(url)}.",
            hint="Start a study with `autotune tune`, or name its database with --storage.",
        )
    if not has_folder:
        raise StorageUnavailable(
            f"Cannot create {path}: {path.parent} is no folder.",
            hint="Create the folder, or choose another file with --storage.",
        )


def _require_tables(engine: Engine, url: str) -> None:
    with engine.connect() as connection:
        if migrate.stored_revision(connection) is None:
            raise StorageUnavailable(
                f"{mask_url(url)} holds no study of autotune.",
                hint="Start a study with `autotune tune`, or name its database with --storage.",
            )


def _switch_to_wal(connection: sqlite3.Connection, _record: object) -> None:
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


def _ensure_wal(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        connection.execute("PRAGMA journal_mode = WAL")


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # FULL keeps the last commit through a power cut.
    with _closed_on_error(connection):
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    # The pool forgets a connection whose event failed, without closing it.
    try:
        yield
    except sqlite3.Error:
        connection.close()
        raise


def _leave_transactions_to_us(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("autotune_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
