from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage.integrity import integrity
from storage.repository import open_repository
from tests.storage.contract import begin
from tests.storage.integrity_contract import IntegrityContract

pytestmark = pytest.mark.usefixtures("prepared")


class TestSqliteIntegrity(IntegrityContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'study.db'}"


def test_rows_that_belong_to_nothing(url: str, tmp_path: Path) -> None:
    with open_repository(url) as repository:
        study = repository.open_study("night", fingerprint={}, spec={})
        begin(repository, study.id)
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection, connection:
        connection.execute("INSERT INTO autotune_sample VALUES (1, 7, 'sent_s', x'00')")
        connection.execute("DELETE FROM autotune_study")
    found = integrity(url)
    assert (found.trials_without_study, found.samples_without_trial) == (1, 1)
    assert found.damage == ()


def test_damage_is_told_in_words_of_sqlite(url: str, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'autotune_sample'"
        (root,) = connection.execute(query).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    data[(root - 1) * size : root * size] = bytes([255]) * size
    path.write_bytes(bytes(data))
    found = integrity(url)
    assert not found.sound
    assert found.damage
    assert found.faults == found.damage
