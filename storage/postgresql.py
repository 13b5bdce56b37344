"""What is particular to PostgreSQL: it waits for a lock for ever unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.pool import ConnectionPoolEntry

LOCK_TIMEOUT_S: Final = 60
"""How long a statement waits for what another transaction has locked."""

SHORT_LOCK_TIMEOUT_S: Final = 2
"""The same where what fails is tried again, so that it is said what is waited for."""


def limit_locks(seconds: int) -> Callable[[Any, ConnectionPoolEntry], None]:
    """Return what has each new connection wait so long for a lock."""

    def configure(connection: Any, _record: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{seconds}s'")
        # What is set in a transaction goes with it.
        connection.commit()

    return configure
