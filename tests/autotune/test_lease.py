"""Leases are given back by the kernel and name their owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault, LeaseHeld
from autotune.lease import database_lock, device_lock, lease, study_lock

HOLDER = """
import sys, time
from pathlib import Path
from autotune.lease import lease
with lease(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lease(path, "study 'a'"):
        with pytest.raises(LeaseHeld) as raised, lease(path, "study 'a'"):
            pass
        assert f"study 'a' is in use by process {os.getpid()} on " in raised.value.message
        assert raised.value.exit_code == 75
    with lease(path, "study 'a'"):
        pass


def test_a_killed_owner_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LeaseHeld, match=str(holder.pid)), lease(path, "it"):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with lease(path, "it"):
        assert str(os.getpid()) in path.read_text()


def test_an_owner_that_has_not_signed_yet_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lease(path, "it"):
        path.write_text("")
        with pytest.raises(LeaseHeld, match="another process"), lease(path, "it"):
            pass


@pytest.mark.parametrize("written", ["[" * 4096, "[]", '{"pid": 1}', "\0", "5"])
def test_whatever_is_written_into_a_lock_is_no_crash(tmp_path: Path, written: str) -> None:
    path = tmp_path / "lock"
    with lease(path, "it"):
        path.write_text(written)
        with pytest.raises(LeaseHeld, match="another process"), lease(path, "it"):
            pass


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_place_of_a_lock_leaves_its_target_alone(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    precious, path = tmp_path / "precious", tmp_path / "lock"
    precious.write_text("all I have")
    link(path, precious)
    with pytest.raises(EnvironmentFault, match="no regular file") as caught, lease(path, "it"):
        pass
    assert f"ls -l {path}" in caught.value.hint
    assert precious.read_text() == "all I have"


def test_a_link_to_nothing_in_place_of_a_lock_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.symlink_to(tmp_path / "new")
    with pytest.raises(EnvironmentFault, match="no regular file"), lease(path, "it"):
        pass
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
@pytest.mark.timeout(10)
def test_what_is_no_file_in_place_of_a_lock_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    with pytest.raises(EnvironmentFault, match="no regular file"), lease(path, "it", wait=True):
        pass


def test_a_place_where_no_lock_can_be_is_an_environment_fault(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(EnvironmentFault, match="cannot make the lock"), lease(file / "lock", "it"):
        pass


def test_the_lock_of_another_user_binds_without_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.write_text("theirs")
    real_open = os.open

    def only_reading(name: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return real_open(name, flags, mode)

    monkeypatch.setattr(os, "open", only_reading)
    with lease(path, "it"), pytest.raises(LeaseHeld), lease(path, "it"):
        pass
    assert path.read_text() == "theirs"


def test_a_study_is_locked_where_its_database_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = study_lock("sqlite:///a.db", "s")
    assert here == study_lock(f"sqlite:///{tmp_path}/a.db", "s")
    assert here == study_lock(f"sqlite+pysqlite:///{tmp_path}/a.db", "s")
    (tmp_path / "link").symlink_to(tmp_path)
    assert here == study_lock("sqlite:///link/a.db", "s")
    assert database_lock("sqlite:///a.db") == tmp_path / "a.db.lock"
    assert here.parent == tmp_path
    assert here != study_lock("sqlite:///a.db", "t")
    assert study_lock("postgresql://h/d", "s") != study_lock("postgresql://h/e", "s")


def test_a_full_disk_makes_a_lock_no_weaker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    path = tmp_path / "lock"
    with lease(path, "it"), pytest.raises(LeaseHeld), lease(path, "it"):
        pass


def test_waiting_for_a_lock_ends_when_its_owner_does(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        threading.Timer(0.05, holder.kill).start()
        with lease(path, "it", wait=True):
            assert holder.wait() == -signal.SIGKILL


def test_the_lock_of_a_device_stays_in_its_folder() -> None:
    assert device_lock("GPU-1/../2").name == "vllm-autotune-GPU-12.lock"
