"""How a repository reads and writes: whole transactions, on the database that it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from sqlalchemy import Connection, Engine, select

from storage.backup import Backups
from storage.errors import StorageUnavailable
from storage.faults import translated_errors
from storage.masking import mask_url
from storage.records import StudyRecord
from storage.schema import study
from storage.sqlite import OpenedFile, file_path
from storage.steady import IMPATIENT, Patience

Clock = Callable[[], datetime]
R = TypeVar("R")
T = TypeVar("T")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Fence(Protocol):
    """What must hold whenever something is written."""

    def require(self, connection: Connection) -> None:
        """Return if it holds, to the end of the transaction; raise ``StorageError`` if not."""


class Transactions:
    """One database: its connections, and what is checked whenever something is written.

    Attributes:
        backups: Made between trials.
        fence: Asked within each transaction that writes, None for nothing to ask.

    Args:
        engine: Owned, and disposed of by ``close``.
        clock: The time of day.
        patience: With a database that is locked or down.
    """

    def __init__(
        self, engine: Engine, *, clock: Clock = utc_now, patience: Patience = IMPATIENT
    ) -> None:
        self._engine = engine
        self._writer = engine.execution_options(autotune_write=True)
        self._url = engine.url.render_as_string(hide_password=False)
        self._file = OpenedFile(engine.url)
        self._clock = clock
        self._patience = patience
        self._opened: dict[int, StudyRecord] = {}
        self.backups: Backups | None = None
        self.fence: Fence | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the repository may not be used afterwards."""
        self._engine.dispose()

    @property
    def patience(self) -> Patience:
        return self._patience

    @property
    def path(self) -> Path | None:
        """The SQLite file, None for other databases."""
        return file_path(self._engine.url)

    def steadily(self, work: Callable[[], R], *, mend: Callable[[], object] | None = None) -> R:
        """Return what ``work`` on the same database returns, as ``Patience.steadily`` does.

        For what is written past this object, such as Optuna's tables: where the fence does not
        hold, nothing is done.
        """

        def fenced(call: Callable[[], T]) -> T:
            if self.fence is not None:
                with self._reading() as connection:
                    self.fence.require(connection)
            return call()

        mended = None if mend is None else partial(fenced, mend)
        return self._patience.steadily(partial(fenced, work), mend=mended)

    def opened(self, study_id: int) -> StudyRecord:
        """Return a study as ``open_study`` opened it here."""
        return self._opened[study_id]

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translated_errors(self._url), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction that writes, whoever holds what; errors are those of storage."""
        # Before connecting, which would make a new file in place of a deleted one.
        self._file.require_in_place()
        with translated_errors(self._url), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _writing(self, study_id: int | None = None) -> Iterator[Connection]:
        with self.writing() as connection:
            if self.fence is not None:
                self.fence.require(connection)
            if study_id in self._opened:
                self._require_study(connection, self._opened[study_id])
            yield connection

    def _require_study(self, connection: Connection, opened: StudyRecord) -> None:
        """Notice that the study was deleted; not every file copied over ours shows that.

        SQLite reads on from its log and cache, and a look at the file itself would have the
        kernel drop SQLite's locks on it.
        """
        known = (study.c.id == opened.id, study.c.created_at == opened.created_at)
        if connection.execute(select(study.c.id).where(*known)).one_or_none() is None:
            raise StorageUnavailable(
                f"Study {opened.name!r} is no longer in {mask_url(self._url)}: it was deleted, or "
                "another database was copied over this one.",
                hint="Restore a copy, and run the same command again to resume.",
            )

    def now(self) -> str:
        """Return the time of day as it is stored: UTC in ISO 8601 with microseconds."""
        return self._clock().astimezone(UTC).isoformat(timespec="microseconds")
