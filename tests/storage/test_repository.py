from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import StorageError, StorageUnavailable
from storage.repository import Repository
from tests.storage.contract import RepositoryContract

pytestmark = pytest.mark.usefixtures("prepared")


class TestSqliteRepository(RepositoryContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'study.db'}"


def test_a_database_lost_in_mid_study(repository: Repository, tmp_path: Path) -> None:
    repository.open_study("night", fingerprint={}, spec={})
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection:
        connection.execute("DROP TABLE autotune_event")
    with pytest.raises(StorageUnavailable, match="no such table"):
        repository.add_event(1, "drift")


def test_a_damaged_sample_is_named(repository: Repository, tmp_path: Path) -> None:
    study = repository.open_study("night", fingerprint={}, spec={})
    repository.begin_trial(study.id, 0, phase="search", fidelity="live", candidate={})
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection, connection:
        connection.execute("INSERT INTO autotune_sample VALUES (1, 0, 'ttft_ms', x'00')")
    with pytest.raises(StorageError, match="'ttft_ms' is damaged"):
        repository.samples(study.id, 0)
