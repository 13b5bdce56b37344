from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.cli import main, os_faults
from autotune.cli.os_faults import words_of
from tests.autotune.cli.conftest import Autotune


@pytest.mark.parametrize("filename", [None, "a file"])
def test_every_fault_has_words_and_a_hint(filename: str | None) -> None:
    for code in errno.errorcode:
        message, hint = words_of(OSError(code, os.strerror(code), filename))
        assert message.endswith(f": {os.strerror(code)}")
        assert message.startswith("a file: ") == (filename is not None)
        assert hint


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (OSError(errno.EAGAIN, "again"), "no further process can be started: again", "ulimit -u"),
        (BlockingIOError(errno.EAGAIN, "busy", 5), "output: busy", "a pipe that waits"),
        (OSError(errno.EMFILE, "many"), "the operating system refused: many", "ulimit -n"),
        (OSError(errno.ENOENT, "none"), "the operating system refused: none", "--debug"),
        (OSError("odd"), "the operating system refused: odd", "--debug"),
        (OSError(errno.EIO, "lost", b"raw\xff"), "raw\udcff: lost", "disk"),
    ],
)
def test_what_was_not_done_is_named(error: OSError, message: str, hint: str) -> None:
    words = words_of(error)
    assert words.message == message
    assert hint in words.hint


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files and folders without room; the streams are redirected to none."""
    without_room: set[str] = set()

    def statvfs(path: str) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=0 if path in without_room else 1)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(os_faults, "_file_of", lambda _: None)
    return without_room


FULL = OSError(errno.ENOSPC, "full")


def test_nobody_knows_what_is_full(full: set[str]) -> None:
    assert words_of(FULL) == ("output: full", "make room, or write elsewhere")
    assert full == set()


def test_the_folder_that_is_full_is_named(
    full: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    full.add(str(tmp_path))
    assert words_of(FULL).message == f"the disk of the folder {tmp_path}: full"
    assert words_of(OSError(errno.EIO, "lost")).message == "output: lost"


def test_the_file_that_output_goes_to_is_named(
    full: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_faults, "_file_of", {1: "/a/list.txt"}.get)
    assert words_of(FULL).message == "output: full"
    full.add("/a/list.txt")
    assert words_of(FULL).message == "standard output (/a/list.txt): full"
    assert words_of(OSError(errno.EIO, "lost")).message == "standard output (/a/list.txt): lost"


def test_a_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    words = words_of(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert words.message == "the current folder has been removed"
    assert "change to a folder" in words.hint


def test_the_command_says_both(autotune: Autotune, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(**_: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(main, "app", command)
    ran = autotune("best")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines() == [
        "error: no further process can be started: Resource temporarily unavailable",
        "hint: end other processes, or raise the limit that `ulimit -u` shows",
    ]
