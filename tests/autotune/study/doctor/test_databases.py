from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.study.doctor.databases import database_results
from storage.repository import open_repository

if TYPE_CHECKING:
    from tests.storage.postgres import Server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    with open_repository(f"sqlite:///{path}") as repository:
        repository.open_study("study", fingerprint={}, spec={})
    return path


def test_a_row_is_written_and_taken_back(file: Path) -> None:
    found = {each.name: each for each in database_results(f"sqlite:///{file}")}
    assert {name: each.state for name, each in found.items()} == {
        "database": "ok", "journal": "ok", "integrity": "ok",
    }  # fmt: skip
    with closing(sqlite3.connect(file)) as connection:
        names = connection.execute("SELECT name FROM autotune_study").fetchall()
    assert names == [("study",)]


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    (found,) = database_results(f"sqlite:///{tmp_path / 'new.db'}")
    assert (found.state, "no study yet" in found.words) == ("ok", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["mysql://me:hunter2@db/x", "sqlite:////nowhere/at/all.db"])
def test_one_that_cannot_be_used_fails_without_its_password(url: str) -> None:
    (found,) = database_results(url)
    assert found.state == "fail"
    assert "hunter2" not in found.words


def test_damage_is_found(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        place = "SELECT rootpage FROM sqlite_master WHERE name = 'autotune_event'"
        page = connection.execute(place).fetchone()[0]
    with file.open("r+b") as opened:
        opened.seek((page - 1) * page_size)
        opened.write(b"\xff" * page_size)
    assert "fail" in {each.state for each in database_results(f"sqlite:///{file}")}


@pytest.mark.wire
def test_postgresql_is_asked_too_and_no_sequence_moves_on(postgres: Server) -> None:
    url = postgres.database()
    with open_repository(url) as repository:
        first = repository.open_study("first", fingerprint={}, spec={})
    found = {each.name: each.state for each in database_results(url)}
    assert found == {"database": "ok", "integrity": "ok"}
    with open_repository(url) as repository:
        second = repository.open_study("second", fingerprint={}, spec={})
        assert [each.name for each in repository.studies()] == ["second", "first"]
    assert second.id == first.id + 1
