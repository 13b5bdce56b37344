"""What happened to a study beside its trials, in order: started, resumed, interrupted."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from storage import codec
from storage.database import open_database
from storage.faults import translated_errors
from storage.records import Json
from storage.schema import event


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event as stored; ``at`` is UTC in ISO 8601."""

    at: str
    kind: str
    detail: Json


def read_events(url: str, study_id: int) -> tuple[EventRecord, ...]:
    """Return the events of a study, the first one first; none of a study that there is not.

    Raises:
        StorageUnavailable: the database cannot be read, or holds no tables of ours.
    """
    engine = open_database(url, create=False)
    try:
        with translated_errors(url), engine.connect() as connection:
            rows = connection.execute(
                select(event).where(event.c.study_id == study_id).order_by(event.c.id)
            ).all()
    finally:
        engine.dispose()
    return tuple(EventRecord(row.at, row.kind, codec.decode(row.detail)) for row in rows)
