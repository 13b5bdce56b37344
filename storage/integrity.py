"""Whether a database is sound: what SQLite says of its file, and whether tables agree."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, Table, exists, func, inspect, select, text
from sqlalchemy.exc import DatabaseError

from storage.database import OPTUNA_TABLES, open_database
from storage.faults import translated_errors
from storage.names import optuna_name
from storage.schema import sample, study, trial

_SHOWN: Final = 10
_COUNTS: Final = (
    ("trials_without_study", "trials belong to no study"),
    ("told_without_outcome", "trials count as told and have no outcome"),
    ("samples_without_trial", "samples belong to no trial"),
    ("rows_without_optuna", "trials that Optuna was told of are missing there"),
    ("optuna_without_row", "trials have a result in Optuna and no row here"),
)


@dataclass(frozen=True, slots=True)
class Integrity:
    """What was found; a sound database has no damage and zeros.

    Attributes:
        damage: What SQLite finds wrong with its file, ten at most; None for other databases,
            which look after themselves.
        trials_without_study: Rows of ours whose study there is not.
        told_without_outcome: Rows of which Optuna is said to know what nobody knows.
        samples_without_trial: Arrays of trials that there are not.
        rows_without_optuna: Trials of ours that Optuna was told of and does not have. The next
            run of the study makes its tables anew.
        optuna_without_row: Trials that are complete in a study of Optuna's that is ours, and
            that we do not have. The next run of the study makes its tables anew.
    """

    damage: tuple[str, ...] | None
    trials_without_study: int = 0
    told_without_outcome: int = 0
    samples_without_trial: int = 0
    rows_without_optuna: int = 0
    optuna_without_row: int = 0

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong, each in words."""
        counted = [(getattr(self, name), words) for name, words in _COUNTS]
        return (*(self.damage or ()), *(f"{count} {words}" for count, words in counted if count))

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def integrity(url: str) -> Integrity:
    """Check a database, and change nothing.

    Raises:
        StorageUnavailable: If it cannot be read at all, or holds no tables of ours.
        NewerSchema: If a later version wrote it.
    """
    engine = open_database(url, create=False)
    try:
        with translated_errors(url), engine.connect() as connection:
            damage = _damage(connection)
            # Of a damaged file no count says anything.
            return Integrity(damage) if damage else _counted(connection, damage)
    finally:
        engine.dispose()


def _damage(connection: Connection) -> tuple[str, ...] | None:
    if connection.dialect.name != "sqlite":
        return None
    try:
        found = connection.exec_driver_sql(f"PRAGMA quick_check({_SHOWN})").scalars().all()
    except DatabaseError as error:
        # It gives up on a page that makes no sense at all.
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return (str(error.orig),)
    return tuple(str(each) for each in found if each != "ok")


def _counted(connection: Connection, damage: tuple[str, ...] | None) -> Integrity:
    of_study = exists().where(study.c.id == trial.c.study_id)
    of_trial = exists().where(
        trial.c.study_id == sample.c.study_id, trial.c.number == sample.c.number
    )
    lacking, beyond = _against_optuna(connection)
    return Integrity(
        damage,
        trials_without_study=_count(connection, trial, ~of_study),
        told_without_outcome=_count(connection, trial, trial.c.told, trial.c.outcome.is_(None)),
        samples_without_trial=_count(connection, sample, ~of_trial),
        rows_without_optuna=lacking,
        optuna_without_row=beyond,
    )


def _count(connection: Connection, table: Table, *conditions: ColumnElement[bool]) -> int:
    found = connection.execute(select(func.count()).select_from(table).where(*conditions))
    return int(found.scalar_one())


def _against_optuna(connection: Connection) -> tuple[int, int]:
    """Return how many of our told trials Optuna lacks, and how many of its complete ones we."""
    if not set(inspect(connection).get_table_names()) >= OPTUNA_TABLES:
        return 0, 0
    lacking = beyond = 0
    for study_id, name in connection.execute(select(study.c.id, study.c.name)).all():
        theirs = dict(_optuna_states(connection, optuna_name(name)))
        query = select(trial.c.number, trial.c.told).where(trial.c.study_id == study_id)
        ours = {row.number: bool(row.told) for row in connection.execute(query)}
        lacking += sum(told and number not in theirs for number, told in ours.items())
        beyond += sum(
            state == "COMPLETE" and number not in ours for number, state in theirs.items()
        )
    return lacking, beyond


def _optuna_states(connection: Connection, name: str) -> Iterator[tuple[int, str]]:
    query = text(
        "SELECT trials.number, trials.state FROM trials JOIN studies USING (study_id) "
        "WHERE studies.study_name = :name"
    )
    for number, state in connection.execute(query, {"name": name}):
        yield int(number), str(state)
