"""Rows as they are written, within the transaction of whoever calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray
from sqlalchemy import Connection, Row, insert, select, update

from storage import codec, rows
from storage.errors import StorageError, UnknownTrial
from storage.records import FinishedState, Json, Outcome, TrialFailure
from storage.schema import event, sample, study, trial


@dataclass(frozen=True, slots=True)
class Ending:
    """What a trial leaves, as the database holds it.

    Attributes:
        columns: Of ``autotune_trial``, ``finished_at`` not among them.
        samples: Packed arrays by name.
    """

    columns: Mapping[str, str | None]
    samples: Mapping[str, bytes]

    @classmethod
    def of(
        cls,
        *,
        state: FinishedState,
        outcome: Outcome,
        timings: Mapping[str, float | None] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        intervals: Json | None = None,
        engine: Json | None = None,
        diagnosis: Json | None = None,
        failure: TrialFailure | None = None,
        samples: Mapping[str, NDArray[Any]] | None = None,
    ) -> Self:
        """Return what ``Repository.finish_trial`` is given, encoded.

        Raises:
            StorageError: For values that cannot be stored, such as NaN outside of samples.
        """
        columns = {
            **judged_columns(state, outcome, metrics, intervals, failure),
            "timings": codec.encode_optional(timings, name="timings"),
            "engine": codec.encode_optional(engine, name="engine"),
            "diagnosis": codec.encode_optional(diagnosis, name="diagnosis"),
        }
        packed = {name: codec.pack(array, name=name) for name, array in (samples or {}).items()}
        return cls(columns, packed)


def judged_columns(
    state: FinishedState,
    outcome: Outcome,
    metrics: Mapping[str, float | None] | None,
    intervals: Json | None,
    failure: TrialFailure | None,
) -> dict[str, str | None]:
    """Return the columns that another budget may change."""
    return {
        "state": state,
        "metrics": codec.encode_optional(metrics, name="metrics"),
        "intervals": codec.encode_optional(intervals, name="intervals"),
        "failure_class": None if failure is None else failure.failure_class,
        "failure_evidence": None if failure is None else codec.clean(failure.evidence),
        "outcome": rows.outcome_text(outcome),
    }


def study_row(connection: Connection, study_id: int) -> Row[Any]:
    return connection.execute(select(study).where(study.c.id == study_id)).one()


def trial_row_or_none(connection: Connection, study_id: int, number: int) -> Row[Any] | None:
    return connection.execute(
        select(trial).where(trial.c.study_id == study_id, trial.c.number == number)
    ).one_or_none()


def trial_row(connection: Connection, study_id: int, number: int) -> Row[Any]:
    row = trial_row_or_none(connection, study_id, number)
    if row is None:
        raise UnknownTrial(number)
    return row


def packed_samples(connection: Connection, study_id: int, number: int) -> dict[str, bytes]:
    found = connection.execute(
        select(sample.c.name, sample.c.data)
        .where(sample.c.study_id == study_id, sample.c.number == number)
        .order_by(sample.c.name)
    )
    return {name: bytes(data) for name, data in found}


def set_trial(connection: Connection, row: Row[Any], **values: object) -> None:
    connection.execute(
        update(trial)
        .where(trial.c.study_id == row.study_id, trial.c.number == row.number)
        .values(**values)
    )


def end_trial(connection: Connection, row: Row[Any], ending: Ending, *, finished_at: str) -> None:
    """Store what a trial leaves that has no samples yet; Optuna is then to be told."""
    set_trial(connection, row, **ending.columns, finished_at=finished_at, told=False)
    if ending.samples:
        connection.execute(
            insert(sample),
            [
                {"study_id": row.study_id, "number": row.number, "name": name, "data": data}
                for name, data in ending.samples.items()
            ],
        )


def add_event(connection: Connection, study_id: int, kind: str, detail: Json, *, at: str) -> None:
    text = codec.encode(detail, name="detail")
    connection.execute(insert(event).values(study_id=study_id, at=at, kind=kind, detail=text))


def require_same_ending(connection: Connection, row: Row[Any], ending: Ending) -> None:
    same = all(getattr(row, column) == value for column, value in ending.columns.items())
    if not same or ending.samples != packed_samples(connection, row.study_id, row.number):
        raise StorageError(f"Trial {row.number} is {row.state} already, with another content.")


def require_same_samples(connection: Connection, row: Row[Any], ending: Ending) -> None:
    """Return if a finished trial has these samples; what they come to may be judged anew."""
    if ending.samples != packed_samples(connection, row.study_id, row.number):
        raise StorageError(f"Trial {row.number} is {row.state} already, with other samples.")


def same_beginning(
    row: Row[Any] | None, beginning: Mapping[str, object], *, at_any_time: bool = False
) -> bool:
    """Return whether a trial was begun with these columns."""
    ignored = {"started_at"} if at_any_time else set()
    return row is not None and all(
        getattr(row, column) == value
        for column, value in beginning.items()
        if column not in ignored
    )


def insert_trial(
    connection: Connection, study_id: int, number: int, **beginning: object
) -> Row[Any]:
    """Insert a running trial and return its row."""
    known = {"study_id": study_id, "number": number, "state": "running", "told": False}
    connection.execute(insert(trial).values(**known, **beginning))
    return trial_row(connection, study_id, number)
