from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import StorageError, StorageUnavailable
from storage.records import Outcome
from storage.repository import Repository, open_repository
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
    with pytest.raises(StorageError, match="'ttft_ms' of trial 0 is damaged") as caught:
        repository.samples(study.id, 0)
    assert caught.value.hint.startswith("Restore the database from a copy")
    assert repository.trial(study.id, 0).number == 0


def replace(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


WRITERS: dict[str, Callable[[Repository], object]] = {
    "begin_trial": lambda repository: repository.begin_trial(
        1, 1, phase="search", fidelity="live", candidate={}
    ),
    "finish_trial": lambda repository: repository.finish_trial(
        1, 0, state="failed", outcome=Outcome("fail")
    ),
    "mark_told": lambda repository: repository.mark_told(1, 0),
    "set_state": lambda repository: repository.set_state(1, "finished"),
    "add_event": lambda repository: repository.add_event(1, "drift"),
}


@pytest.mark.parametrize("lose", [Path.unlink, replace, move_the_folder])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_writers_notice_a_lost_file(
    template: Path,
    tmp_path: Path,
    lose: Callable[[Path], object],
    write: Callable[[Repository], object],
) -> None:
    path = tmp_path / "folder" / "study.db"
    path.parent.mkdir()
    shutil.copy(template, path)
    with open_repository(f"sqlite:///{path}") as repository:
        repository.open_study("night", fingerprint={}, spec={})
        repository.begin_trial(1, 0, phase="search", fidelity="live", candidate={})
        lose(path)
        there = path.exists()
        with pytest.raises(StorageUnavailable, match="was deleted or replaced while in use") as e:
            write(repository)
        assert "run the same command again" in e.value.hint
        assert path.exists() == there


def test_a_file_that_stays_under_a_new_spelling(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "study.db")
    study = repository.open_study("night", fingerprint={}, spec={})
    with open_repository(f"sqlite:///{tmp_path}/link.db") as linked:
        linked.add_event(study.id, "drift")
    repository.add_event(study.id, "drift")
    assert repository.study("night").id == study.id


def test_a_path_that_cannot_be_looked_up(repository: Repository, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(StorageUnavailable, match="Too many levels of symbolic links") as caught:
        repository.add_event(1, "drift")
    assert caught.value.hint


LATE_WRITERS: dict[str, Callable[[Repository, int], object]] = {
    "set_state": lambda repository, study_id: repository.set_state(study_id, "finished"),
    "mark_told": lambda repository, study_id: repository.mark_told(study_id, 0),
    "add_event": lambda repository, study_id: repository.add_event(study_id, "drift"),
}


@pytest.mark.parametrize("write", LATE_WRITERS.values(), ids=LATE_WRITERS)
def test_a_study_that_is_gone_while_in_use_is_noticed(
    write: Callable[[Repository, int], object], repository: Repository, tmp_path: Path
) -> None:
    study = repository.open_study("night", fingerprint={}, spec={})
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection, connection:
        connection.execute("UPDATE autotune_study SET created_at = 'another day'")
    with pytest.raises(StorageUnavailable, match="Study 'night' is no longer in") as caught:
        write(repository, study.id)
    assert caught.value.hint.startswith("Restore a copy")
