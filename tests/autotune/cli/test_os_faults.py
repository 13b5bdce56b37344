from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from autotune.cli import main
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
        (OSError(errno.ENOSPC, "full"), "output: full", "make room"),
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
