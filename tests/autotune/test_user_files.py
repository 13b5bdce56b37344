"""Files of any kind, where a regular one is expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.user_files import MAX_BYTES, check_destination, read_small

pytestmark = pytest.mark.timeout(10)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        check_destination(path)
    assert caught.value.hint
    return caught.value.message


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    assert read_small(path) == ""
    os.truncate(path, MAX_BYTES)
    assert len(read_small(path)) == MAX_BYTES
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(OSError, match="is larger than 16 MiB"):
        read_small(path)


def test_what_may_have_no_end_is_not_read(pipe: Path) -> None:
    for path in (pipe, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(OSError, match="is no regular file"):
            read_small(path)
    with pytest.raises(IsADirectoryError):
        read_small(pipe.parent)


def test_a_file_that_is_there_or_can_be_made_is_a_destination(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    link.symlink_to(path)
    assert check_destination(path) == check_destination(link) == path.resolve()
    assert not path.exists()
    path.write_text("kept")
    assert check_destination(link) == path.resolve()
    assert path.read_text() == "kept"


def test_what_is_no_regular_file_is_no_destination(pipe: Path, tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    for path in (pipe, tmp_path, Path("/dev/null"), circle):
        assert refusal(path) == f"{path}: is no regular file"


def test_a_destination_needs_its_folder(tmp_path: Path) -> None:
    missing, link = tmp_path / "none", tmp_path / "link"
    assert refusal(missing / "a").endswith(f"a: cannot be written: there is no folder {missing}")
    link.symlink_to(missing / "a")
    assert refusal(link).endswith(f"link: cannot be written: there is no folder {missing}")
    (tmp_path / "file").touch()
    assert "there is no folder" in refusal(tmp_path / "file" / "a")
    assert refusal(tmp_path / ("x" * 300)).endswith("cannot be written: File name too long")


def test_a_destination_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert refusal(tmp_path / "a").endswith("a: cannot be written: Permission denied")
