"""From a replay's end to a row: by way of a file, so that no fault of the database loses it."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from storage.errors import LeaseTaken, StorageError, StorageUnavailable
from storage.records import TrialRecord
from storage.repository import Repository
from storage.spool import Spool, Spooled
from storage.writing import Ending

_MIB: Final = 2**20
_FIRST_ROOM: Final = 16 * _MIB
"""Bytes that are reserved for a trial while nobody knows how much one needs."""


class Keeper:
    """Stores what the trials of one study leave, each exactly once.

    Args:
        repository: Has the study opened.
        study_id: Of it.
        folder: Where files wait until the database has what they hold.
        say: Told in words what did not go as it should.
    """

    def __init__(
        self, repository: Repository, study_id: int, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._repository = repository
        self._study_id = study_id
        self._spool = Spool(folder)
        self._folder = folder
        self._say = say
        self._needed = _FIRST_ROOM

    def prepare(self) -> None:
        """Before a trial begins, reserve room for what it will measure; make a copy if due.

        Raises:
            StorageUnavailable: There is none, or the folder cannot be written.
        """
        try:
            self._spool.reserve(self._needed)
        except OSError as error:
            room = _room(self._folder, self._needed)
            raise StorageUnavailable(
                f"What a trial measures cannot be kept in {self._folder}: {error.strerror}{room}.",
                hint="Free some disk space, or choose another --log-folder; the same command goes "
                "on where this one ends.",
                full=error.errno in (errno.ENOSPC, errno.EDQUOT),
            ) from error
        if self._repository.backups is not None:
            self._repository.backups.when_due()

    def finish(self, row: TrialRecord, **ending: Any) -> None:
        """Store what a trial left; first in a file, then in the database.

        Args:
            row: Of the trial, as it was begun; the database is not asked for it.
            ending: As ``Ending.of`` takes it.

        Raises:
            StorageUnavailable, LeaseTaken: The database cannot be used, or no longer by us; it is
                said where the measurement waits for the same command to store it.
            StorageError: As ``Repository.store_ending`` does.
        """
        study = self._repository.opened(self._study_id)
        spooled = Spooled.of(study, row, Ending.of(**ending), finished_at=self._repository.now())
        size = len(spooled.to_bytes())
        self._needed = max(self._needed, 2 * size)
        path = self._kept(spooled, size)
        try:
            self._repository.store_ending(
                self._study_id, row.number, spooled.ending, finished_at=spooled.finished_at
            )
        except StorageUnavailable as error:
            raise self._where_it_waits(error, spooled.number, path, size) from error
        except LeaseTaken as error:
            raise error.with_hint(f"{error.hint} {_waits(spooled.number, path)}") from error
        if path is not None:
            self._spool.drop(path)

    def store_waiting(self) -> tuple[int, ...]:
        """Store what files of this study hold and the database has not; say each.

        Returns:
            The numbers of the trials that were stored now.

        Raises:
            StorageUnavailable: The database cannot be used; the files stay.
        """
        stored = []
        for path in self._spool.files():
            spooled = self._read(path)
            if spooled is not None and self._store(path, spooled):
                stored.append(spooled.number)
        return tuple(stored)

    def _kept(self, spooled: Spooled, size: int) -> Path | None:
        try:
            return self._spool.keep(spooled)
        except OSError as error:
            self._say(
                f"what trial {spooled.number} measured cannot be kept in a file of {self._folder} "
                f"({error.strerror}{_room(self._folder, size)}): it goes to the database at "
                "once"
            )
            return None

    def _where_it_waits(
        self, error: StorageUnavailable, number: int, path: Path | None, size: int
    ) -> StorageUnavailable:
        message = error.message
        if error.full:
            message = f"{message.rstrip('.')}{_needed(size)}."
        hint = f"{_waits(number, path)} {error.hint}"
        return StorageUnavailable(message, hint=hint, url=error.url, full=error.full)

    def _read(self, path: Path) -> Spooled | None:
        """Return what a file of this study holds; None for those of others and torn ones."""
        try:
            spooled = self._spool.read(path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._set_aside(path, f"is damaged ({error})")
            return None
        except OSError as error:
            self._say(f"{path} cannot be read ({error.strerror}), and is left where it is")
            return None
        study = self._repository.opened(self._study_id)
        return spooled if spooled.study == (study.name, study.created_at) else None

    def _store(self, path: Path, spooled: Spooled) -> bool:
        try:
            stored = self._repository.store_spooled(self._study_id, spooled)
        except (LeaseTaken, StorageUnavailable):
            raise
        except StorageError as error:
            self._set_aside(path, f"cannot be stored ({error.message.rstrip('.')})")
            return False
        self._spool.drop(path)
        if stored:
            self._say(
                f"stored what trial {spooled.number} had measured by {spooled.finished_at[:19]} "
                f"UTC, from {path}"
            )
        return stored

    def _set_aside(self, path: Path, why: str) -> None:
        try:
            where = f"is set aside as {self._spool.set_aside(path)}"
        except OSError as error:
            where = f"stays where it is ({error.strerror})"
        self._say(f"{path} {why} and {where}")


def _waits(number: int, path: Path | None) -> str:
    """Say what became of a measurement that the database has not."""
    if path is None:
        return f"What trial {number} measured is lost, since no file could be written."
    return f"What trial {number} measured waits in {path}; the same command stores it."


def _needed(size: int) -> str:
    # Rounded up: less than a tenth is no nothing.
    return f", {math.ceil(10 * size / _MIB) / 10:.1f} MiB are needed"


def _room(folder: Path, size: int) -> str:
    """Say how much room a measurement needs, and how much there is if that is known."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return _needed(size)
    free = found.f_bavail * found.f_frsize / _MIB
    return f"{_needed(size)} and {free:.1f} MiB are free in {folder}"
