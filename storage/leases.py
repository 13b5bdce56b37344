"""One controller a study, on whatever machine: a row with its owner and its expiry.

Times are the database's own, so that clocks of machines need not agree. A controller's writes
look into the row within their own transaction: one that was taken for dead writes nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Row,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from storage.errors import LeaseTaken, StorageError, StorageUnavailable
from storage.owner import Owner
from storage.schema import lease
from storage.transactions import Transactions

HEARTBEAT_S: Final = 10.0
EXPIRY_S: Final = 60.0
_AFTER_FAULT_S: Final = 1.0
_ours: Final[set[str]] = set()
"""Owners in this process; one that could not give its lease back is no longer among them."""

_LONGEST_BEAT_S: Final = 3.0
"""How long a heartbeat is waited for in the end: a little more than one tries a locked file."""

_UNIX_EPOCH_DAY: Final = 2440587.5


@dataclass(frozen=True, slots=True)
class Predecessor:
    """Whose lease was taken over, and why that was possible."""

    host: str
    pid: int
    since: str
    why: str

    def words(self, what: str) -> str:
        """Return a line that says so."""
        return (
            f"took over {what} from process {self.pid} on {self.host}, there since {self.since}: "
            f"{self.why}"
        )


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that this process holds, as its writes look for it.

    Attributes:
        what: Is leased, in words.
        resource: Its name in the table.
        owner: This process.
        expiry_s: After which without a heartbeat others may take it.
        predecessor: Whose lease it was; None if it was nobody's.
    """

    what: str
    resource: str
    owner: Owner
    expiry_s: float
    predecessor: Predecessor | None = None

    def require(self, connection: Connection) -> None:
        """Return if the lease is still ours, and keep it so until the transaction ends.

        Raises:
            LeaseTaken: It is another's, or nobody's.
        """
        row = connection.execute(
            select(lease).where(lease.c.resource == self.resource).with_for_update()
        ).one_or_none()
        if row is None or row.owner != self.owner.owner:
            raise _lost(self.what, row)


def study_resource(name: str) -> str:
    """Return how the lease of a study is called in the table."""
    return f"study/{name}"


@contextmanager
def held_lease(
    database: Transactions,
    resource: str,
    what: str,
    *,
    heartbeat_s: float = HEARTBEAT_S,
    expiry_s: float = EXPIRY_S,
) -> Iterator[Held]:
    """Hold a lease within the block, and have all that ``database`` writes look for it.

    Args:
        database: Whose table it is in.
        resource: Its name there.
        what: Is leased, in words.
        heartbeat_s: How often it is said that we live.
        expiry_s: After which others may take it where that was not said.

    Raises:
        LeaseTaken: Another has it, who lives or may live.
        StorageUnavailable: The database cannot be used.
    """
    held = database.steadily(lambda: _taken(database, resource, what, expiry_s))
    _ours.add(held.owner.owner)
    stop = threading.Event()
    beats = threading.Thread(
        target=_beat, args=(database, held, heartbeat_s, stop), name="lease", daemon=True
    )
    beats.start()
    database.fence = held
    try:
        yield held
    finally:
        database.fence = None
        _ours.discard(held.owner.owner)
        stop.set()
        beats.join(_LONGEST_BEAT_S)
        # Who finds it later sees that we are gone, or waits until it expires.
        with suppress(StorageError):
            _give_back(database, held)


def _taken(database: Transactions, resource: str, what: str, expiry_s: float) -> Held:
    try:
        return _attempt(database, resource, what, expiry_s)
    except (LeaseTaken, StorageUnavailable):
        raise
    except StorageError:
        # Another has inserted a row just now, which there is none but one of.
        return _attempt(database, resource, what, expiry_s)


def _attempt(database: Transactions, resource: str, what: str, expiry_s: float) -> Held:
    owner = Owner.myself()
    with database.writing() as connection:
        row = connection.execute(
            select(lease).where(lease.c.resource == resource).with_for_update()
        ).one_or_none()
        now_s = _now_s(connection)
        predecessor = None if row is None else _predecessor(row, now_s)
        if row is not None and predecessor is None:
            raise _in_use(what, row, now_s)
        values = row_of(owner, since=database.now(), now_s=now_s, expiry_s=expiry_s)
        if row is None:
            connection.execute(insert(lease).values(resource=resource, **values))
        else:
            connection.execute(update(lease).where(lease.c.resource == resource).values(**values))
    return Held(what, resource, owner, expiry_s, predecessor)


def row_of(owner: Owner, *, since: str, now_s: float, expiry_s: float) -> dict[str, Any]:
    """Return the columns of a lease that is taken now, but for its name."""
    times = {"since": since, "heartbeat_s": now_s, "expiry_s": now_s + expiry_s}
    return {**asdict(owner), **times}


def _predecessor(row: Row[Any], now_s: float) -> Predecessor | None:
    """Return whose lease this was if it may be taken, else None."""
    holder = Owner(row.owner, row.host, row.machine, row.pid, row.started_ticks)
    given_up = replace(holder, owner="") == replace(Owner.myself(), owner="")
    if holder.is_gone or (given_up and row.owner not in _ours):
        why = "it runs no more"
    elif now_s >= row.expiry_s:
        why = f"it has not been heard of for {now_s - row.heartbeat_s:.0f} s"
    else:
        return None
    return Predecessor(row.host, row.pid, row.since, why)


def _now_s(connection: Connection) -> float:
    return float(connection.execute(select(_clock(connection))).scalar_one())


def _clock(connection: Connection) -> ColumnElement[float]:
    """Return the seconds since 1970 by the clock of the database."""
    if connection.dialect.name == "sqlite":
        return cast((func.julianday("now") - literal(_UNIX_EPOCH_DAY)) * 86_400.0, Double)
    return cast(func.extract("epoch", func.clock_timestamp()), Double)


def _beat(database: Transactions, held: Held, heartbeat_s: float, stop: threading.Event) -> None:
    """Say until told to stop that we live; a database that is away is tried again soon."""
    pause_s = heartbeat_s
    while not stop.wait(pause_s):
        try:
            _say_that_we_live(database, held)
        except StorageError:
            # Whether the lease is lost by then is seen by the next who writes.
            pause_s = min(_AFTER_FAULT_S, heartbeat_s)
        else:
            pause_s = heartbeat_s


def _say_that_we_live(database: Transactions, held: Held) -> None:
    with database.writing() as connection:
        now_s = _now_s(connection)
        connection.execute(
            update(lease)
            .where(lease.c.resource == held.resource, lease.c.owner == held.owner.owner)
            .values(heartbeat_s=now_s, expiry_s=now_s + held.expiry_s)
        )


def _give_back(database: Transactions, held: Held) -> None:
    with database.writing() as connection:
        connection.execute(
            delete(lease).where(
                lease.c.resource == held.resource, lease.c.owner == held.owner.owner
            )
        )


def _in_use(what: str, row: Row[Any], now_s: float) -> LeaseTaken:
    heard = f"it was last heard of {max(0.0, now_s - row.heartbeat_s):.0f} s ago"
    return LeaseTaken(
        f"{what} is in use by process {row.pid} on {row.host} since {row.since}",
        hint=f"Wait until it ends, or end it; {heard}, and if it is dead its lease ends in "
        f"{row.expiry_s - now_s:.0f} s.",
        host=row.host,
        pid=row.pid,
        since=row.since,
    )


def _lost(what: str, row: Row[Any] | None) -> LeaseTaken:
    if row is None:
        return LeaseTaken(
            f"{what} is no longer leased to this process: another one took it over, since this "
            "one had not been heard of, and has ended.",
            hint="Nothing was overwritten; run the same command again to go on.",
            host="",
            pid=0,
            since="",
        )
    return LeaseTaken(
        f"{what} was taken over by process {row.pid} on {row.host} at {row.since}, since this one "
        "had not been heard of: it was suspended, or cut off from the database.",
        hint="Nothing was overwritten. Wait until that one ends, or end it.",
        host=row.host,
        pid=row.pid,
        since=row.since,
    )
