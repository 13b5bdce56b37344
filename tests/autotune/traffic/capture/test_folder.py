from __future__ import annotations

import stat
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault, LeaseHeld, UsageError
from autotune.traffic.capture.folder import held_folder, salt_of, unfinished
from autotune.traffic.capture.opening import CaptureOptions, opened_recorder


def test_a_salt_is_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    salt = salt_of(tmp_path)
    assert len(salt) == 32
    assert salt_of(tmp_path) == salt
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert salt_of(tmp_path / "elsewhere", path) == salt


@pytest.mark.parametrize("text", [None, "", "00" * 31, "no digits", "00" * 33])
def test_what_is_no_salt_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "salt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match="salt"):
        salt_of(tmp_path, path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(EnvironmentFault, match="cannot be made"),
        held_folder(tmp_path / "file" / "sub"),
    ):
        pass
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        salt_of(tmp_path / "missing")


def test_one_recorder_at_a_time(tmp_path: Path) -> None:
    options = CaptureOptions(folder=tmp_path / "new")
    said: list[str] = []
    with opened_recorder(options, by="proxy", say=said.append):
        with (
            pytest.raises(LeaseHeld, match="is in use by"),
            opened_recorder(options, by="proxy", say=said.append),
        ):
            pass
        # Processes of one server take folders beside each other, with one salt.
        with opened_recorder(options, by="middleware", say=said.append, beside=True) as second:
            assert second.folder == tmp_path / "new" / "2"
        assert not (tmp_path / "new" / "2" / ".salt").exists()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert said == []


def test_unfinished_recordings_are_listed_oldest_first(tmp_path: Path) -> None:
    (tmp_path / "capture-3.part").mkdir()
    for name in ("capture-2.part", "capture-1.part", "a.jsonl"):
        (tmp_path / name).write_text("")
    assert [path.name for path in unfinished(tmp_path)] == ["capture-1.part", "capture-2.part"]
