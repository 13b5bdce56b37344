"""The database: whether it can be opened, holds what is written, and is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, delete, insert, select

from autotune.study.doctor.results import Result
from storage import schema
from storage.database import check_database, open_database, sqlite_path
from storage.errors import StorageError
from storage.faults import translated_errors
from storage.integrity import integrity
from storage.masking import mask_url

_ROW = -1
"""Of a study that is never committed; no sequence of PostgreSQL moves on for it."""

_MOST_FAULTS = 3


def database_results(url: str) -> Iterator[Result]:
    """Open the database, write a row and take it back, and have it checked for damage.

    A database that does not exist yet is not made. Nothing is committed.
    """
    name = mask_url(url)
    try:
        contents = check_database(url)
    except StorageError as error:
        yield Result("database", "fail", error.message, error.hint)
        return
    if not contents.ours:
        found = "Optuna's studies, and none of ours" if contents.optuna else "no study yet"
        yield Result("database", "ok", f"{name}: {found}")
        return
    for label, part in (("database", _served), ("integrity", _sound)):
        try:
            yield from part(url)
        except StorageError as error:
            yield Result(label, "fail", error.message, error.hint)


def _served(url: str) -> Iterator[Result]:
    engine = open_database(url, create=False)
    try:
        with translated_errors(url):
            yield _round_trip(engine, mask_url(url))
            if sqlite_path(url) is not None:
                yield _journal(engine)
    finally:
        engine.dispose()


def _sound(url: str) -> Iterator[Result]:
    found = integrity(url)
    if found.sound:
        yield Result("integrity", "ok", "no damage, and the tables agree")
        return
    words = "; ".join(found.faults[:_MOST_FAULTS])
    if replace(found, rows_without_optuna=0, optuna_without_row=0).sound:
        hint = "the next autotune tune of the study makes Optuna's tables anew"
        yield Result("integrity", "warn", words, hint)
    else:
        hint = "restore a copy: what is damaged is lost"
        yield Result("integrity", "fail", words, hint)


def _round_trip(engine: Engine, name: str) -> Result:
    """Write a study, read it, delete it, and roll all of that back."""
    with engine.execution_options(autotune_write=True).connect() as connection:
        transaction = connection.begin()
        try:
            found = _written(connection)
        finally:
            transaction.rollback()
    if not found:
        hint = "restore a copy; do not go on with this database"
        return Result("database", "fail", f"{name}: a row that was written was not there", hint)
    return Result("database", "ok", f"{name}: a row was written, read and taken back")


def _written(connection: Connection) -> bool:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    row = {
        "id": _ROW,
        "name": f"doctor {now}",
        "created_at": now,
        "updated_at": now,
        "fingerprint": "{}",
        "spec": "{}",
        "state": "finished",
    }
    own = schema.study.c.id == _ROW
    connection.execute(insert(schema.study).values(row))
    read = connection.execute(select(schema.study.c.name).where(own)).scalar_one_or_none()
    connection.execute(delete(schema.study).where(own))
    left = connection.execute(select(schema.study.c.id).where(own)).one_or_none()
    return read == row["name"] and left is None


def _journal(engine: Engine) -> Result:
    with engine.connect() as connection:
        mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
    if mode == "wal":
        return Result("journal", "ok", "write-ahead log, so that readers do not wait")
    hint = "a study sets it; a network file system does not take it"
    return Result("journal", "warn", f"mode {mode}, and not wal", hint)
