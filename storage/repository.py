"""Everything the program remembers, behind one class. Optuna's side is in ``storage.study``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, func, insert, select, update

from storage import codec, rows, writing
from storage.database import open_database
from storage.errors import StorageError, UnknownStudy
from storage.names import check_characters, check_name
from storage.records import (
    FinishedState,
    Json,
    Outcome,
    StudyRecord,
    StudyState,
    StudySummary,
    TrialFailure,
    TrialRecord,
    TrialState,
)
from storage.schema import study, trial
from storage.spool import Spooled
from storage.steady import IMPATIENT, Patience, repeated
from storage.transactions import Transactions, utc_now
from storage.writing import Ending

__all__ = ["INTERRUPTED", "Repository", "open_repository", "utc_now"]

INTERRUPTED: Final = Outcome("fail")
"""What Optuna is told of a trial whose controller was killed."""


def open_repository(
    url: str, *, create: bool = True, patience: Patience = IMPATIENT
) -> Repository:
    """Open the database and return its repository, to be closed; see ``open_database``."""
    engine = patience.steadily(lambda: open_database(url, create=create, patient=patience.waits))
    return Repository(engine, patience=patience)


class Repository(Transactions):
    """Studies, trials, samples and events of one database.

    Each method is one transaction, which is repeated as the repository's patience has it. All
    raise ``StorageUnavailable`` if the database fails, and ``StorageError`` for values that
    cannot be stored, such as NaN. Those that write also raise ``StorageUnavailable`` if the
    SQLite file was deleted or replaced since the repository was made. Use it in a ``with``
    statement or call ``close``; it owns the engine.
    """

    # Studies

    @repeated
    def open_study(self, name: str, *, fingerprint: Json, spec: Json) -> StudyRecord:
        """Create the study, or resume it if its fingerprint is the same.

        A resumed study is running again and takes the new spec. Its verdict stays while the
        spec is the same; another budget asks for another verdict.

        Raises:
            FingerprintMismatch: If the study exists with another fingerprint.
        """
        check_name(name)
        fingerprint_text = codec.encode(fingerprint, name="fingerprint")
        spec_text = codec.encode(spec, name="spec")
        with self._writing() as connection:
            row = connection.execute(select(study).where(study.c.name == name)).one_or_none()
            if row is None:
                study_id = self._create_study(connection, name, fingerprint_text, spec_text)
            else:
                study_id = row.id
                self._resume_study(connection, row, fingerprint_text, spec_text)
            record = rows.study_record(writing.study_row(connection, study_id))
        self._opened[study_id] = record
        return record

    @repeated
    def study(self, name: str | None) -> StudyRecord:
        """Return the study of this name; for None the most recently updated one.

        Raises:
            UnknownStudy: If there is none.
            StorageError: If no study can have this name.
        """
        query = select(study).order_by(study.c.updated_at.desc(), study.c.id.desc()).limit(1)
        if name is not None:
            check_characters(name)
            query = query.where(study.c.name == name)
        with self._reading() as connection:
            row = connection.execute(query).one_or_none()
            if row is None:
                raise UnknownStudy(name, connection.execute(select(study.c.name)).scalars())
            return rows.study_record(row)

    @repeated
    def studies(self) -> tuple[StudySummary, ...]:
        """Return all studies, the most recently updated first."""
        counts: dict[int, dict[TrialState, int]] = {}
        with self._reading() as connection:
            for study_id, state, count in connection.execute(
                select(trial.c.study_id, trial.c.state, func.count()).group_by(
                    trial.c.study_id, trial.c.state
                )
            ):
                counts.setdefault(study_id, {})[state] = count
            found = connection.execute(
                select(study).order_by(study.c.updated_at.desc(), study.c.id.desc())
            )
            return tuple(
                StudySummary(
                    id=row.id,
                    name=row.name,
                    state=row.state,
                    created_at=row.created_at,
                    updated_at=row.updated_at,
                    trials=counts.get(row.id, {}),
                )
                for row in found
            )

    @repeated
    def set_state(self, study_id: int, state: StudyState) -> None:
        with self._writing(study_id) as connection:
            self._touch(connection, study_id, state=state)

    @repeated
    def set_verdict(self, study_id: int, verdict: Json | None) -> None:
        text = codec.encode_optional(verdict, name="verdict")
        with self._writing(study_id) as connection:
            self._touch(connection, study_id, verdict=text)

    @repeated
    def update_spec(self, study_id: int, spec: Json) -> None:
        """Replace the spec as a whole."""
        text = codec.encode(spec, name="spec")
        with self._writing(study_id) as connection:
            self._touch(connection, study_id, spec=text)

    # Trials

    @repeated
    def begin_trial(
        self,
        study_id: int,
        number: int,
        *,
        phase: str,
        fidelity: str,
        candidate: Json,
        replicate_of: int | None = None,
        log_path: str | None = None,
    ) -> None:
        """Store a trial that is about to run; repeating with the same content is harmless.

        Raises:
            StorageError: If the study has another trial of this number.
        """
        beginning = {
            "phase": phase,
            "fidelity": fidelity,
            "candidate": codec.encode(candidate, name="candidate"),
            "replicate_of": replicate_of,
            "started_at": self.now(),
            "log_path": codec.clean(log_path),
        }
        with self._writing(study_id) as connection:
            row = writing.trial_row_or_none(connection, study_id, number)
            # What was stored by an attempt of which nobody knew has another time of day.
            again = writing.same_beginning(row, beginning, at_any_time=True)
            if row is None or not again or row.state != "running":
                writing.insert_trial(connection, study_id, number, **beginning)
            self._touch(connection, study_id)

    def finish_trial(
        self,
        study_id: int,
        number: int,
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
    ) -> None:
        """Store measurement, samples and the outcome to be told, all or nothing.

        Samples may hold NaN and infinities. Repeating with the same content is harmless.

        Raises:
            UnknownTrial: If the trial was not begun.
            StorageError: If it is finished already, with another content.
        """
        ending = Ending.of(
            state=state,
            outcome=outcome,
            timings=timings,
            metrics=metrics,
            intervals=intervals,
            engine=engine,
            diagnosis=diagnosis,
            failure=failure,
            samples=samples,
        )
        self.store_ending(study_id, number, ending, finished_at=self.now())

    @repeated
    def store_ending(
        self, study_id: int, number: int, ending: Ending, *, finished_at: str
    ) -> None:
        """Store what a trial leaves that ended at this time, as ``finish_trial`` does.

        Raises:
            UnknownTrial: If the trial was not begun.
            StorageError: If it is finished already, with another content.
        """
        with self._writing(study_id) as connection:
            row = writing.trial_row(connection, study_id, number)
            if row.state != "running":
                writing.require_same_ending(connection, row, ending)
                return
            writing.end_trial(connection, row, ending, finished_at=finished_at)
            self._touch(connection, study_id)

    @repeated
    def store_spooled(self, study_id: int, spooled: Spooled) -> bool:
        """Store what a trial left and a file kept; one that is stored already stays as it is.

        A trial that was meanwhile marked as interrupted is no longer, and one that a restored
        copy of the database lacks is there again. Optuna is then to be told.

        Returns:
            Whether it was stored now.

        Raises:
            StorageError: If the trial of this number is another one, or has other samples.
        """
        number = spooled.number
        with self._writing(study_id) as connection:
            row = writing.trial_row_or_none(connection, study_id, number)
            if row is None:
                row = writing.insert_trial(connection, study_id, number, **spooled.beginning)
            elif not writing.same_beginning(row, spooled.beginning):
                raise StorageError(f"Trial {number} in the database is another one.")
            if row.state not in ("running", "interrupted") or row.engine is not None:
                writing.require_same_samples(connection, row, spooled.ending)
                return False
            writing.end_trial(connection, row, spooled.ending, finished_at=spooled.finished_at)
            self._add_event(connection, study_id, "stored_late", {"number": number})
            self._touch(connection, study_id)
        return True

    @repeated
    def rejudge_trial(
        self,
        study_id: int,
        number: int,
        *,
        state: FinishedState,
        outcome: Outcome,
        metrics: Mapping[str, float | None] | None = None,
        intervals: Json | None = None,
        failure: TrialFailure | None = None,
        diagnosis: Json | None = None,
    ) -> None:
        """Replace what a finished trial says by what it says under another budget.

        Samples, timings and engine stay, and without another one the diagnosis. The new outcome
        counts as untold.

        Raises:
            UnknownTrial: If there is no trial of this number.
            StorageError: If it still runs.
        """
        values = writing.judged_columns(state, outcome, metrics, intervals, failure)
        with self._writing(study_id) as connection:
            row = writing.trial_row(connection, study_id, number)
            if row.state == "running":
                raise StorageError(f"Trial {number} still runs and cannot be judged anew.")
            if diagnosis is not None:
                values["diagnosis"] = codec.encode_optional(diagnosis, name="diagnosis")
            writing.set_trial(connection, row, **values, told=False)
            detail = {"number": number, "state": state, "judged_by": outcome.judged_by}
            self._add_event(connection, study_id, "rejudged", detail)
            self._touch(connection, study_id)

    @repeated
    def trials(self, study_id: int) -> tuple[TrialRecord, ...]:
        """Return all trials of the study by number."""
        return self._trials(select(trial).where(trial.c.study_id == study_id))

    @repeated
    def trial(self, study_id: int, number: int) -> TrialRecord:
        """Return one trial.

        Raises:
            UnknownTrial: If there is none of this number.
        """
        with self._reading() as connection:
            return rows.trial_record(writing.trial_row(connection, study_id, number))

    @repeated
    def samples(self, study_id: int, number: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of a trial by name; none for one that is unknown or has none.

        Raises:
            StorageError: If one is damaged.
        """
        with self._reading() as connection:
            packed = writing.packed_samples(connection, study_id, number)
        return {
            name: codec.unpack(data, name=f"{name!r} of trial {number}")
            for name, data in packed.items()
        }

    @repeated
    def untold(self, study_id: int) -> tuple[TrialRecord, ...]:
        """Return the trials whose outcome is known here and perhaps not to Optuna."""
        return self._trials(
            select(trial).where(
                trial.c.study_id == study_id, trial.c.outcome.is_not(None), ~trial.c.told
            )
        )

    @repeated
    def mark_told(self, study_id: int, number: int) -> None:
        """Record that Optuna holds the outcome.

        Raises:
            UnknownTrial: If there is no trial of this number.
            StorageError: If it has no outcome.
        """
        with self._writing(study_id) as connection:
            row = writing.trial_row(connection, study_id, number)
            if row.outcome is None:
                raise StorageError(f"Trial {number} has no outcome that could be told.")
            writing.set_trial(connection, row, told=True)

    @repeated
    def interrupt_running(self, study_id: int) -> tuple[int, ...]:
        """Mark trials that a killed controller left running as interrupted.

        Returns:
            Their numbers; each now has a failed outcome to be told.
        """
        with self._writing(study_id) as connection:
            found = connection.execute(
                select(trial)
                .where(trial.c.study_id == study_id, trial.c.state == "running")
                .order_by(trial.c.number)
            ).all()
            for row in found:
                writing.set_trial(
                    connection,
                    row,
                    state="interrupted",
                    finished_at=self.now(),
                    outcome=rows.outcome_text(INTERRUPTED),
                )
                self._add_event(connection, study_id, "interrupted", {"number": row.number})
            return tuple(row.number for row in found)

    # Events

    @repeated
    def add_event(self, study_id: int, kind: str, detail: Json | None = None) -> None:
        with self._writing(study_id) as connection:
            self._add_event(connection, study_id, kind, detail or {})

    # Below: parts of the above, within their transaction.

    def _create_study(self, connection: Connection, name: str, fingerprint: str, spec: str) -> int:
        now = self.now()
        study_id: int = connection.execute(
            insert(study)
            .values(
                name=name,
                created_at=now,
                updated_at=now,
                fingerprint=fingerprint,
                spec=spec,
                state="running",
            )
            .returning(study.c.id)
        ).scalar_one()
        self._add_event(connection, study_id, "started", {})
        return study_id

    def _resume_study(
        self, connection: Connection, row: Row[Any], fingerprint: str, spec: str
    ) -> None:
        rows.check_fingerprint(rows.study_record(row), codec.decode(fingerprint))
        verdict = row.verdict if row.spec == spec else None
        self._touch(connection, row.id, spec=spec, state="running", verdict=verdict)
        self._add_event(connection, row.id, "resumed", {"same_spec": row.spec == spec})

    def _touch(self, connection: Connection, study_id: int, **values: object) -> None:
        changed = connection.execute(
            update(study).where(study.c.id == study_id).values(updated_at=self.now(), **values)
        )
        if changed.rowcount == 0:
            raise StorageError(f"The database holds no study of id {study_id}.")

    def _add_event(self, connection: Connection, study_id: int, kind: str, detail: Json) -> None:
        writing.add_event(connection, study_id, kind, detail, at=self.now())

    def _trials(self, query: Select[Any]) -> tuple[TrialRecord, ...]:
        with self._reading() as connection:
            found = connection.execute(query.order_by(trial.c.number))
            return tuple(rows.trial_record(row) for row in found)
