"""Opens the one database that holds Optuna's tables and ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from storage import migrate, postgresql, schema, sqlite
from storage.backup import back_up
from storage.errors import StorageError, StorageUnavailable
from storage.faults import missing_driver, translated_errors, unavailable
from storage.masking import mask_url

DEFAULT_URL: Final = "sqlite:///autotune.db"
OPTUNA_TABLES: Final = frozenset(("studies", "trials", "version_info"))
_SQLITE_DRIVERS: Final = ("sqlite", "sqlite+pysqlite")
_LIBPQ_DRIVERS: Final = ("psycopg", "psycopg2")
_LIBPQ: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A server that does not answer is noticed in a minute, not in a quarter of an hour."""

_URL_HINT = "Write sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME."


@dataclass(frozen=True, slots=True)
class Contents:
    """Whose tables a database holds."""

    ours: bool = False
    optuna: bool = False


def resolve_url(option: str | None, environ: Mapping[str, str]) -> str:
    """Return the URL of ``--storage``, AUTOTUNE_STORAGE or OPTUNA_STORAGE, else the default."""
    return (
        option or environ.get("AUTOTUNE_STORAGE") or environ.get("OPTUNA_STORAGE") or DEFAULT_URL
    )


def open_database(url: str, *, create: bool = True, patient: bool = False) -> Engine:
    """Open the database and bring our tables up to date; the caller disposes of the engine.

    An SQLite file is copied before tables that it holds are changed.

    Transactions of ``engine.execution_options(autotune_write=True)`` take SQLite's write lock
    at their start, so that what they read stays true until they commit.

    Args:
        url: An SQLAlchemy URL of SQLite (a file) or PostgreSQL.
        create: Whether to create what is missing. Commands that only read say False; they can
            read an SQLite file in a place where nothing may be written.
        patient: Whether the caller repeats what fails for now, and so no lock need be waited for
            long.

    Raises:
        StorageUnavailable: If it cannot be opened; if it holds no tables of ours and
            ``create`` is False.
        NewerSchema: If a later version wrote it.
    """
    parsed = parse_url(url)
    path = sqlite.file_path(parsed)
    if path is not None:
        sqlite.check_file(path, url=url, create=create)
    engine = _engine(parsed, url, write=create, patient=patient)
    try:
        with translated_errors(url):
            if create or not _is_readable(engine, url):
                copied = (lambda: None) if path is None else partial(back_up, path)
                migrate.ensure_schema(engine, before_upgrade=copied)
    except StorageError:
        engine.dispose()
        raise
    return engine


def check_database(url: str) -> Contents:
    """Check that studies can be kept in a database, and change nothing.

    Raises:
        StorageUnavailable: If it could not be opened, written or created, or if it is an
            SQLite file of another program.
        NewerSchema: If a later version wrote it.
    """
    parsed = parse_url(url)
    path = sqlite.file_path(parsed)
    exists = path is None or sqlite.check_file(path, url=url, create=True)
    engine = _engine(parsed, url, write=False)
    try:
        with translated_errors(url):
            contents = _check_tables(engine, url) if exists else Contents()
    finally:
        engine.dispose()
    if path is not None:
        sqlite.check_writable(path)
    return contents


def parse_url(url: str) -> URL:
    """Return the parsed URL.

    Raises:
        StorageUnavailable: If it is no URL, or not one of a database that can hold a study.
    """
    try:
        if "\0" in url:
            raise ValueError("NUL, which no name can have")
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is no number.
        # What has none of these is no URL with a secret, but the name of a file.
        is_name = not set(url) & set(":@?\0")
        raise StorageUnavailable(
            f"{mask_url(url)!r} is no database URL.",
            hint=f"For an SQLite file write sqlite:///{url}." if is_name and url else _URL_HINT,
            url=url,
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
    return sqlite.file_path(parse_url(url))


def engine_options(
    url: URL, *, write: bool = True, index: bool = False, patient: bool = False
) -> dict[str, Any]:
    """Return what ``create_engine`` needs for this database, for Optuna's engine and ours.

    Args:
        url: From ``parse_url``.
        write: SQLite keeps the journal mode in the file: False leaves the file as it is.
        index: Whether the engine is Optuna's. Its commits reach an SQLite file's disk with the
            next one of ours, since it makes dozens a trial.
        patient: As in ``open_database``.

    Raises:
        StorageUnavailable: As ``storage.sqlite.reader_of`` does.
    """
    if url.get_backend_name() != "sqlite":
        # Servers drop connections that were idle for as long as a trial takes.
        given = _LIBPQ if url.get_driver_name() in _LIBPQ_DRIVERS else {}
        arguments = {key: value for key, value in given.items() if key not in url.query}
        seconds = postgresql.SHORT_LOCK_TIMEOUT_S if patient else postgresql.LOCK_TIMEOUT_S
        return {
            "pool_pre_ping": True,
            "pool_events": [(postgresql.limit_locks(seconds), "connect")],
            "hide_parameters": True,
            "connect_args": arguments,
        }
    switch = [(sqlite.switch_to_wal, "connect")] if write else []
    configure = sqlite.configure_index if index else sqlite.configure
    options: dict[str, Any] = {
        "connect_args": {
            "timeout": sqlite.SHORT_BUSY_TIMEOUT_S if patient else sqlite.BUSY_TIMEOUT_S
        },
        "pool_events": [*switch, (configure, "connect")],
        "hide_parameters": True,
    }
    path = sqlite.file_path(url)
    reader = None if write or path is None else sqlite.reader_of(path)
    return options if reader is None else {**options, "creator": reader}


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


def _engine(parsed: URL, url: str, *, write: bool, patient: bool = False) -> Engine:
    try:
        engine = create_engine(parsed, **engine_options(parsed, write=write, patient=patient))
    except (ImportError, NoSuchModuleError) as error:
        raise missing_driver(url) from error
    except (ArgumentError, ValueError) as error:
        raise unavailable(url, error) from error
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", sqlite.leave_transactions_to_us)
        event.listen(engine, "begin", sqlite.begin)
    return engine


def _is_readable(engine: Engine, url: str) -> bool:
    """Return whether what is stored can be read as it is.

    Raises:
        StorageUnavailable: If there are no tables of ours.
    """
    with engine.connect() as connection:
        revision = migrate.stored_revision(connection)
    if revision is None:
        raise StorageUnavailable(
            f"{mask_url(url)} holds no study of autotune.",
            hint="Start a study with `autotune tune`, or name its database with --storage.",
        )
    return revision in schema.READABLE


def _check_tables(engine: Engine, url: str) -> Contents:
    """Return whose tables there are; refuse a file that is another program's."""
    with engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
        revision = migrate.stored_revision(connection)
        if revision is not None:
            migrate.require_known(connection, revision)
    found = Contents(ours=revision is not None, optuna=names >= OPTUNA_TABLES)
    if engine.dialect.name == "sqlite" and names and found == Contents():
        raise StorageUnavailable(
            f"{mask_url(url)} belongs to another program: it has tables, and neither Optuna's "
            "nor ours.",
            hint="Choose another file with --storage.",
        )
    return found
