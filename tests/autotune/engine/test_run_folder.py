from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.engine import janitor as janitor_module
from autotune.engine import run_folder
from autotune.engine.janitor import dismiss, start_janitor
from autotune.engine.processes import RUN_VARIABLE, Process, processes_of
from autotune.engine.run_folder import RunFolder, end_left_over
from autotune.errors import EnvironmentFault
from tests.autotune.engine.survival import end, script, spawn, survivors

ENGINE = """
import signal, sys
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
print(segment.name, flush=True)
signal.pause()
"""
SLEEPER = "import signal; print(flush=True); signal.pause()"
CONTROLLER = """
import os, signal, subprocess, sys
from pathlib import Path
from autotune.engine.janitor import start_janitor
from autotune.engine.run_folder import RunFolder
from autotune.engine.processes import RUN_VARIABLE

folder = RunFolder.create(Path(sys.argv[1]))
janitor = start_janitor(folder.path) if sys.argv[2] == "janitor" else None
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[3]], stdout=subprocess.PIPE, start_new_session=True,
    env={**os.environ, RUN_VARIABLE: str(folder.path)},
)
child.stdout.readline()
folder.record()
if janitor:
    folder.watched_by(janitor.pid)
print(child.pid, janitor.pid if janitor else "", flush=True)
signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    made = RunFolder.create(tmp_path)
    yield made
    made.end_all()
    made.remove()
    assert not made.path.exists()


def engine_of(folder: RunFolder, source: str = ENGINE) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        script(source),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, RUN_VARIABLE: str(folder.path)},
    )
    assert process.stdout is not None
    with process.stdout:
        return process, process.stdout.readline().strip()


def test_a_run_is_recorded_and_ended(folder: RunFolder) -> None:
    engine, name = engine_of(folder)
    folder.record()
    segment = Path("/dev/shm") / name
    found = RunFolder.found(folder.path)
    assert not found.abandoned
    assert found.running() == folder.running() == processes_of(folder.path)
    assert segment in found.shared_memory()
    remains = folder.end_all()
    assert engine.wait(10) != 0
    assert engine.pid in {process.pid for process in remains.processes}
    assert not segment.exists()
    assert folder.running() == frozenset()
    assert folder.shared_memory() == frozenset()


def test_the_folder_is_private(folder: RunFolder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_sockets_that_nobody_answers_are_removed(folder: RunFolder) -> None:
    with socket.socket(socket.AF_UNIX) as bound, socket.socket(socket.AF_UNIX) as left:
        bound.bind(str(folder.path / "bound"))
        bound.listen()
        left.bind(str(folder.path / "left"))
        left.close()
        folder.remove_stale_sockets()
        assert folder.sockets() == {folder.path / "bound"}
    folder.remove_stale_sockets()
    assert folder.sockets() == frozenset()


def test_a_folder_that_somebody_removed_has_nothing(folder: RunFolder) -> None:
    folder.remove()
    folder.record()
    folder.remove_stale_sockets()
    assert folder.sockets() == frozenset()


def test_the_next_run_ends_what_a_killed_controller_has_left(tmp_path: Path) -> None:
    controller = spawn(CONTROLLER, tmp_path, "alone", SLEEPER)
    assert controller.stdout is not None
    child = int(controller.stdout.readline())
    assert end_left_over(tmp_path) == []
    end(controller)
    (path,) = tmp_path.iterdir()
    assert RunFolder.found(path).abandoned
    (remains,) = end_left_over(tmp_path)
    assert [process.pid for process in remains.processes] == [child]
    (name,) = remains.names
    assert name.startswith("python")
    assert remains.folder == path
    assert remains.controller is not None
    assert remains.controller.pid == controller.pid
    age = datetime.now(UTC) - (remains.controller.started_at or datetime.min.replace(tzinfo=UTC))
    assert timedelta(seconds=-2) < age < timedelta(minutes=5)
    assert list(tmp_path.iterdir()) == []
    assert end_left_over(tmp_path) == []


def test_the_janitor_ends_what_a_killed_controller_has_left(tmp_path: Path) -> None:
    controller = spawn(CONTROLLER, tmp_path, "janitor", SLEEPER)
    assert controller.stdout is not None
    started = [psutil.Process(int(pid)) for pid in controller.stdout.readline().split()]
    assert len(started) == 2
    end(controller)
    assert survivors(started, timeout_s=20.0) == []
    assert list(tmp_path.iterdir()) == []


def test_a_janitor_that_is_dismissed_does_nothing(folder: RunFolder) -> None:
    folder.remove()
    janitor = start_janitor(folder.path)
    janitor.communicate(timeout=20)
    assert janitor.returncode == 0


def write_record(folder: RunFolder, **changes: Any) -> None:
    path = folder.path / "processes.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_record_of_an_earlier_boot_names_nobody(folder: RunFolder, tmp_path: Path) -> None:
    ours = {"pid": os.getpid(), "started": 1}
    write_record(folder, place="another-boot pid:[1]", controller=ours, processes=[ours])
    assert RunFolder.found(folder.path).abandoned
    assert end_left_over(tmp_path) == []
    assert not folder.path.exists()


def test_a_run_in_another_container_is_left_alone(folder: RunFolder, tmp_path: Path) -> None:
    boot = run_folder._place().partition(" ")[0]
    write_record(folder, place=f"{boot} pid:[1]", controller={"pid": 1, "started": 1})
    assert not RunFolder.found(folder.path).abandoned
    assert end_left_over(tmp_path) == []
    assert folder.path.exists()


ODD_RECORDS = ["", "{", "[]", '{"version": 2}', '{"version": 1, "place": 3}', "[" * 200_000]


@pytest.mark.parametrize("text", ODD_RECORDS, ids=range(len(ODD_RECORDS)))
def test_a_record_that_cannot_be_read_names_nobody(folder: RunFolder, text: str) -> None:
    (folder.path / "processes.json").write_text(text)
    found = RunFolder.found(folder.path)
    assert (found.running(), found.shared_memory()) == (frozenset(), frozenset())


def test_what_only_looks_like_a_run_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "vllm-autotune-run-file"
    file.touch()
    link = tmp_path / "vllm-autotune-run-link"
    link.symlink_to(tmp_path)
    assert end_left_over(tmp_path) == []
    assert file.exists()
    assert link.exists()


def test_a_folder_that_cannot_be_made_is_an_environment_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot make a folder in"):
        RunFolder.create(tmp_path / "none")


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_folder_that_cannot_be_recorded_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        RunFolder.create(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_no_obstacle(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_text", full)
    engine, _ = engine_of(folder)
    folder.record()
    assert engine.pid in {process.pid for process in folder.running()}
    folder.end_all()
    engine.wait(10)


def test_shared_memory_that_is_still_mapped_is_kept(folder: RunFolder) -> None:
    segment = shared_memory.SharedMemory(create=True, size=4096)
    path = Path("/dev/shm") / segment.name
    ours = Process.of(os.getpid())
    assert ours is not None
    write_record(folder, segments=[str(path)])
    assert RunFolder.found(folder.path).end_all().segments == ()
    assert path.exists()
    segment.close()
    segment.unlink()


@pytest.mark.parametrize(
    "changes",
    [
        {"controller": None},
        {"controller": {"pid": float("inf"), "started": 1}},
        {"processes": [3]},
        {"segments": [3]},
    ],
)
def test_a_record_with_odd_fields_names_nobody(folder: RunFolder, changes: Any) -> None:
    write_record(folder, **changes)
    assert RunFolder.found(folder.path).running() == frozenset()
    assert not RunFolder.found(folder.path).abandoned


def test_a_record_that_is_no_file_is_not_read(folder: RunFolder) -> None:
    path = folder.path / "processes.json"
    path.unlink()
    os.mkfifo(path)
    assert RunFolder.found(folder.path).running() == frozenset()


def test_only_shared_memory_is_removed(folder: RunFolder, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    link = Path(f"/dev/shm/{tmp_path.name}-{os.getpid()}")
    link.symlink_to(precious)
    inside = Path(f"/dev/shm/../{precious.relative_to('/')}")
    write_record(folder, segments=[str(precious), str(link), str(inside), "/dev/shm"])
    try:
        assert RunFolder.found(folder.path).end_all().segments == ()
        assert precious.exists()
        assert link.is_symlink()
    finally:
        link.unlink()


def test_a_folder_that_never_got_its_record_is_removed_after_some_time(
    tmp_path: Path, folder: RunFolder
) -> None:
    (folder.path / "processes.json").unlink()
    assert end_left_over(tmp_path) == []
    assert folder.path.exists()
    os.utime(folder.path, (0, 0))
    assert end_left_over(tmp_path) == []
    assert not folder.path.exists()


def test_an_interruption_leaves_no_folder_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: RunFolder) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "_write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        RunFolder.create(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_janitor_holds_nobody_up(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor_module, "_DISMISSED_S", 0.1)
    janitor = start_janitor(folder.path)
    janitor.send_signal(signal.SIGSTOP)
    dismiss(janitor)
    assert janitor.returncode == -signal.SIGKILL


def test_the_next_run_ends_a_stopped_janitor(tmp_path: Path) -> None:
    controller = spawn(CONTROLLER, tmp_path, "janitor", SLEEPER)
    assert controller.stdout is not None
    child, janitor = map(psutil.Process, map(int, controller.stdout.readline().split()))
    janitor.suspend()
    end(controller)
    assert janitor.is_running()
    end_left_over(tmp_path)
    assert survivors([child, janitor], timeout_s=20.0) == []
    assert list(tmp_path.iterdir()) == []
