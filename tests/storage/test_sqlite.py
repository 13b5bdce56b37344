"""SQLite files in places where nothing may be written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from storage.database import open_database
from storage.errors import StorageUnavailable
from storage.repository import open_repository
from storage.sqlite import check_writable, reader_of


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the kernel says of a folder that is mounted read-only, to root as well."""
    real_access = os.access

    def access(path: Path, mode: int) -> bool:
        inside = Path(path).is_relative_to(tmp_path)
        return real_access(path, mode) and not (inside and mode & os.W_OK)

    monkeypatch.setattr(os, "access", access)


def study_in(url: str) -> None:
    with open_repository(url) as repository:
        repository.open_study("night", fingerprint={}, spec={})


def test_what_may_be_written_is_opened_as_ever(url: str, tmp_path: Path) -> None:
    study_in(url)
    assert reader_of(tmp_path / "study.db") is None


@pytest.mark.usefixtures("read_only")
def test_without_a_log_it_is_read_as_a_file_that_does_not_change(url: str, tmp_path: Path) -> None:
    study_in(url)
    with open_repository(url, create=False) as repository:
        assert [study.name for study in repository.studies()] == ["night"]
        assert [path.name for path in tmp_path.iterdir()] == ["study.db"]
        with pytest.raises(StorageUnavailable, match="readonly"):
            repository.set_state(1, "finished")


@pytest.mark.usefixtures("read_only")
def test_a_log_is_read_by_its_index(url: str, tmp_path: Path) -> None:
    with open_repository(url) as writer:
        writer.open_study("night", fingerprint={}, spec={})
        assert (tmp_path / "study.db-wal").stat().st_size > 0
        with open_repository(url, create=False) as repository:
            assert [study.name for study in repository.studies()] == ["night"]
            with pytest.raises(StorageUnavailable, match="readonly"):
                repository.set_state(1, "finished")


@pytest.mark.usefixtures("read_only")
def test_a_log_without_its_index_cannot_be_read(url: str, tmp_path: Path) -> None:
    study_in(url)
    (tmp_path / "study.db-wal").write_bytes(b"records")
    with pytest.raises(StorageUnavailable, match=r"study\.db-wal holds its latest") as caught:
        open_database(url, create=False)
    assert caught.value.hint.startswith("Copy both files")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("create", [True, False])
def test_a_pipe_is_not_waited_for(tmp_path: Path, create: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageUnavailable, match="pipe: it is no regular file") as caught:
        open_database(f"sqlite:///{tmp_path}/pipe", create=create)
    assert "--storage" in caught.value.hint


def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="is no database URL"):
        open_database(f"sqlite:///{tmp_path}/a\0b.db", create=False)


@pytest.mark.usefixtures("read_only")
def test_a_log_that_goes_while_it_is_looked_at_is_no_log(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_in(url)
    # Whoever asks twice is told first that it is there.
    monkeypatch.setattr(Path, "exists", lambda _path: True)
    assert reader_of(tmp_path / "study.db") is not None


@pytest.mark.usefixtures("read_only")
def test_a_log_that_cannot_be_looked_up_is_a_fault(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_in(url)

    def broken(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "stat", broken)
    with pytest.raises(StorageUnavailable, match=r"study\.db: Input/output error"):
        reader_of(tmp_path / "study.db")


def test_odd_paths_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "100% #1?.db"
    sqlite3.connect(path).close()
    path.touch()
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    reader = reader_of(path)
    assert reader is not None
    connection = reader()
    assert connection.execute("PRAGMA user_version").fetchone() == (0,)
    connection.close()


@pytest.mark.usefixtures("read_only")
def test_a_file_that_cannot_be_written_says_which(url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match=f"{tmp_path} is read-only") as caught:
        check_writable(tmp_path / "study.db")
    assert caught.value.hint.startswith("Make the file and its folder writable")
