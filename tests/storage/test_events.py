from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import StorageUnavailable
from storage.events import EventRecord, read_events
from storage.repository import open_repository


def test_events_come_in_their_order_with_what_was_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with open_repository(url) as repository:
        first = repository.open_study("first", fingerprint={}, spec={})
        repository.open_study("second", fingerprint={}, spec={})
        repository.add_event(first.id, "drift", {"share": 0.07})
    started, drift = read_events(url, first.id)
    assert (started.kind, dict(started.detail)) == ("started", {})
    assert drift == EventRecord(drift.at, "drift", {"share": 0.07})
    assert started.at <= drift.at
    assert read_events(url, 99) == ()


def test_a_database_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable):
        read_events(f"sqlite:///{tmp_path / 'none.db'}", 1)
