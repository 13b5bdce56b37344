from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from autotune.watching.listener import Ending
from autotune.watching.status_file import OFTEN_S, SELDOM_S, StatusFile, write_atomically
from tests.autotune.watching.builders import Clock, progress_on

REPLAY = {"stage": "replay", "done": 1, "total": 9}


def status_on(clock: Clock, path: Path) -> StatusFile:
    return StatusFile(path, progress_on(clock), clock=clock)


def written_at(path: Path) -> str:
    return str(json.loads(path.read_bytes())["updated_at"])


def test_nothing_is_written_of_a_study_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status = status_on(Clock(), path)
    status.changed()
    status.progress(REPLAY)
    status.alive()
    status.ended(Ending("failed", 75, "somebody else runs it"))
    assert list(tmp_path.iterdir()) == []


def test_it_is_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "status.json"
    status = status_on(Clock(), path)
    status.leased()
    status.changed()
    assert json.loads(path.read_bytes())["study"] == "night"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_progress_is_written_once_a_second_and_a_new_stage_at_once(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "status.json"
    status = status_on(clock, path)
    status.leased()
    status.progress(REPLAY)
    first = written_at(path)
    clock.now_s += OFTEN_S / 2
    status.progress({**REPLAY, "done": 2})
    assert written_at(path) == first
    status.progress({**REPLAY, "stage": "stop"})
    second = written_at(path)
    assert second > first
    clock.now_s += OFTEN_S
    status.progress({**REPLAY, "stage": "stop", "done": 3})
    assert written_at(path) > second


def test_while_an_engine_starts_it_is_written_now_and_then(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "status.json"
    status = status_on(clock, path)
    status.leased()
    status.changed()
    first = written_at(path)
    clock.now_s += SELDOM_S / 2
    status.alive()
    assert written_at(path) == first
    clock.now_s += SELDOM_S / 2
    status.alive()
    assert written_at(path) > first


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "status.json"
    status = status_on(Clock(), path)
    status.leased()
    status.changed()
    shutil.rmtree(path.parent)
    status.changed()
    assert path.is_file()


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(FileExistsError, match="no plain file"):
            write_atomically(place, b"new")


def test_behind_a_link_the_file_is_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "real.json", tmp_path / "status.json"
    link.symlink_to(path)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
