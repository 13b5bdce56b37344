"""Errors of SQLAlchemy and its drivers as errors of ours: a reason, a hint, no password."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    OperationalError,
    SQLAlchemyError,
)

from storage.errors import StorageError, StorageUnavailable
from storage.masking import hide_secrets, mask_url

_FULL_HINT: Final = "Free some disk space; nothing that was stored before is lost."
# Whole clauses of SQLite and the system: a server's message may name a host or a column.
_HINTS: Final = (
    ("is locked", "Another program holds the database; stop it or wait, then run this again."),
    ("is full", _FULL_HINT),
    ("No space left", _FULL_HINT),
    ("could not extend file", _FULL_HINT),
    ("not a database", "Choose another file with --storage."),
    ("malformed", "Restore it from a copy, or choose another file with --storage."),
    ("readonly", "Make the file and its folder writable, or choose another with --storage."),
    ("name too long", "Choose a file with a shorter name with --storage."),
    ("unable to open", "Make the folder writable, or choose another file with --storage."),
)

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PASSING_CLASSES: Final = ("08", "40", "57P")
_PASSING_STATES: Final = frozenset({"53300", "55P03"})
"""Of PostgreSQL: no connection, a transaction to be repeated, a server that goes down or comes up;
too many connections, a lock that was not given."""

_REFUSED: Final = ("authentication", "password", "does not exist", "pg_hba.conf", "not permitted")
"""What a server says to whom it will not let in later either; it gives no code there."""


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turn errors of SQLAlchemy and its drivers into ours, without passwords."""
    try:
        yield
    except IntegrityError as error:
        raise StorageError(
            f"The database refused a record: {hide_secrets(str(error.orig), url)}.",
            hint="Another program may be writing the same study.",
        ) from error
    except SQLAlchemyError as error:
        raise unavailable(url, error) from error


def unavailable(url: str, error: Exception) -> StorageUnavailable:
    """Return the error that says why the database cannot be used, and what to do."""
    spoken = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
    # A server may say it in several lines.
    reason = hide_secrets(" ".join(str(spoken).split()).rstrip("."), url)
    hint = next((hint for word, hint in _HINTS if word in reason), "")
    full = hint == _FULL_HINT
    return StorageUnavailable(
        f"Cannot use {mask_url(url)}: {reason}{_room_left(url) if full else ''}.",
        hint=hint or "Check that the database can be reached, or choose another with --storage.",
        url=url,
        passing=_is_passing(error, reason),
        full=full,
    )


def _room_left(url: str) -> str:
    """Say how much room there is where an SQLite file is; '' where that is unknown."""
    with suppress(ArgumentError, ValueError, OSError):
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            folder = Path(str(parsed.database)).absolute().parent
            found = os.statvfs(folder)
            return f", {found.f_bavail * found.f_frsize / 2**20:.1f} MiB are free in {folder}"
    return ""


def _is_passing(error: Exception, reason: str) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        # Absent where Python's own module complains, and not SQLite.
        return getattr(error.orig, "sqlite_errorcode", -1) & 0xFF in _BUSY
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state.startswith(_PASSING_CLASSES) or state in _PASSING_STATES
    if error.connection_invalidated:
        return True
    return isinstance(error, OperationalError) and not any(word in reason for word in _REFUSED)


def missing_driver(url: str) -> StorageUnavailable:
    """Return the error for a database whose Python driver is not installed."""
    return StorageUnavailable(
        f"The driver for {mask_url(url)} is not installed.",
        hint="Run `pip install 'psycopg[binary]'` and write postgresql+psycopg://….",
    )
