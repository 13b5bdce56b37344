from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from storage import backup
from storage.backup import Backups, back_up, backup_path
from storage.errors import StorageUnavailable
from storage.repository import Repository, open_repository
from tests.storage.test_migrate import as_first_released

pytestmark = pytest.mark.usefixtures("prepared")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.db"


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if "backup" in each.name)


def studies_in(path: Path) -> list[str]:
    with open_repository(f"sqlite:///{path}", create=False) as repository:
        return sorted(study.name for study in repository.studies())


def test_a_copy_holds_what_the_log_holds(repository: Repository, path: Path) -> None:
    repository.open_study("night", fingerprint={}, spec={})
    assert path.with_name("study.db-wal").stat().st_size > 0
    path.chmod(0o640)
    copy = back_up(path)
    assert copy == path.with_name("study.db.backup-1.db")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o640
    assert names(path.parent) == ["study.db.backup-1.db"]
    assert studies_in(copy) == ["night"]
    repository.open_study("other", fingerprint={}, spec={})
    assert studies_in(copy) == ["night"]


def test_two_copies_are_kept_the_newest_first(repository: Repository, path: Path) -> None:
    for name in ("a", "b", "c"):
        repository.open_study(name, fingerprint={}, spec={})
        back_up(path)
    assert names(path.parent) == ["study.db.backup-1.db", "study.db.backup-2.db"]
    assert studies_in(backup_path(path, 1)) == ["a", "b", "c"]
    assert studies_in(backup_path(path, 2)) == ["a", "b"]


def test_a_copy_put_back_goes_on(repository: Repository, path: Path, url: str) -> None:
    repository.open_study("night", fingerprint={}, spec={})
    copy = back_up(path)
    repository.close()
    path.write_bytes(copy.read_bytes())
    with open_repository(url) as again:
        assert again.open_study("night", fingerprint={}, spec={}).id == 1
        assert again._engine.connect().exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_damaged_database_pushes_no_copy_out(path: Path, url: str) -> None:
    with open_repository(url) as repository:
        repository.open_study("night", fingerprint={}, spec={})
    back_up(path)
    before = backup_path(path, 1).read_bytes()
    data = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'autotune_study'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data[(root - 1) * size : root * size] = bytes([255]) * size
    path.write_bytes(bytes(data))
    with pytest.raises(StorageUnavailable, match=r"is damaged|cannot be copied") as caught:
        back_up(path)
    assert caught.value.hint
    assert names(path.parent) == ["study.db.backup-1.db"]
    assert backup_path(path, 1).read_bytes() == before


def test_a_copy_that_does_not_fit_is_not_begun(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 16, 2**20

    monkeypatch.setattr(os, "statvfs", lambda _folder: Full)
    with pytest.raises(StorageUnavailable, match=r"6\d MiB are needed and 16 MiB are free"):
        back_up(path)
    assert names(path.parent) == []


def test_what_cannot_be_written_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageUnavailable, match="cannot be copied: No space left"):
        back_up(path)
    assert names(path.parent) == []


class Hours:
    """Copies by a clock that is set by hand; each is written down."""

    def __init__(self, path: Path | None, patch: pytest.MonkeyPatch, **given: Any) -> None:
        self.now_s = 0.0
        self.made: list[float] = []
        self.said: list[str] = []
        self.fault: StorageUnavailable | None = None
        patch.setattr(backup, "back_up", self.back_up)
        settings = {"every_s": 3600.0, "wall": lambda: 5000.0, **given}
        self.backups = Backups(path, say=self.said.append, clock=lambda: self.now_s, **settings)

    def back_up(self, _path: Path) -> None:
        if self.fault is not None:
            raise self.fault
        self.made.append(self.now_s)

    def look_at(self, *times_s: float) -> None:
        for self.now_s in times_s:
            self.backups.when_due()


def test_copies_are_made_when_they_are_due(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(path, monkeypatch)
    hours.look_at(0, 3599, 3601, 5000, 7200, 7202)
    assert hours.made == [3601, 7202]


def test_the_copy_of_an_earlier_run_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backup_path(path, 1).touch()
    os.utime(backup_path(path, 1), (4000, 4000))
    hours = Hours(path, monkeypatch)
    hours.look_at(2599, 2601)
    assert hours.made == [2601]


def test_a_copy_from_the_future_says_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backup_path(path, 1).touch()
    hours = Hours(path, monkeypatch)
    hours.look_at(1, 3601)
    assert hours.made == [3601]


def test_a_copy_that_fails_hurts_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(path, monkeypatch)
    hours.fault = StorageUnavailable("It cannot be copied.", hint="Free some.")
    hours.look_at(3600, 3700)
    assert hours.said == ["no copy of the database was made: It cannot be copied. Free some."]
    hours.fault = None
    hours.look_at(7200)
    assert hours.made == [7200]


def test_none_is_made_where_none_is_wanted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, every_s in ((path, None), (None, 3600.0)):
        hours = Hours(place, monkeypatch, every_s=every_s)
        hours.look_at(0, 10_000)
        assert hours.made == []


def test_a_database_is_copied_before_it_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    engine = create_engine(f"sqlite:///{path}")
    as_first_released(engine)
    engine.dispose()
    open_repository(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(backup_path(path, 1))) as connection:
        query = "SELECT version_num FROM autotune_alembic_version"
        assert connection.execute(query).fetchone() == ("0001",)
    assert names(tmp_path) == ["old.db.backup-1.db"]
    open_repository(f"sqlite:///{path}").close()
    assert names(tmp_path) == ["old.db.backup-1.db"]
