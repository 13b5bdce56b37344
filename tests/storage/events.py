"""What a database says has happened to a study: for people who read the table."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from storage import codec
from storage.database import open_database
from storage.schema import event


def events_of(url: str, study_id: int) -> list[tuple[str, Any]]:
    """Kind and detail of each event of the study, the oldest first."""
    engine = open_database(url, create=False)
    query = select(event).where(event.c.study_id == study_id).order_by(event.c.at, event.c.id)
    with engine.connect() as connection:
        found = [(row.kind, codec.decode(row.detail)) for row in connection.execute(query)]
    engine.dispose()
    return found


def kinds_of(url: str, study_id: int) -> list[str]:
    return [kind for kind, _ in events_of(url, study_id)]
