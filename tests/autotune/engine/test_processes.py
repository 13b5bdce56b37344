from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from autotune.engine import processes
from autotune.engine.processes import (
    RUN_VARIABLE,
    Process,
    all_processes,
    end_processes,
    is_running,
    processes_of,
    unlink_unused,
)
from tests.autotune.engine.survival import script

pytestmark = pytest.mark.wire

# As an engine with the resource tracker of multiprocessing: the tracker is deaf to SIGTERM and
# ends when its work is done, after all others.
ENGINE = """
import os, signal, sys
from pathlib import Path

read_end, write_end = os.pipe()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os.close(read_end)
    if sys.argv[2] == "stuck":
        signal.signal(signal.SIGTERM, lambda *_: None)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print(flush=True)
    while True:
        signal.pause()
os.close(write_end)
os.read(read_end, 1)
Path(sys.argv[1]).unlink()
"""
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
signal.pause()
"""
SLEEPER = "import signal; print(flush=True); signal.pause()"
STOPPED = """
import os, signal
print(flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
# A child in a session of its own, whose parent has gone.
RUNAWAY = """
import os, signal
if os.fork() == 0:
    os.setsid()
    print(flush=True)
    signal.pause()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert processes_of(tmp_path) == frozenset()


@pytest.fixture
def short_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_TERM_GRACE_S", 0.1)
    monkeypatch.setattr(processes, "_TRACKER_GRACE_S", 0.1)


def start(run: Path, source: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a source as part of a run, and wait for its first line."""
    leader = subprocess.Popen(
        script(source, *arguments),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, RUN_VARIABLE: str(run)},
    )
    assert leader.stdout is not None
    with leader.stdout:
        leader.stdout.readline()
    return leader


def end(run: Path, leader: subprocess.Popen[str]) -> int:
    end_processes(lambda: processes_of(run))
    return leader.wait(10)


@pytest.mark.parametrize("state", ["willing", "stuck"])
def test_the_tracker_of_shared_memory_gets_to_unlink_it(
    monkeypatch: pytest.MonkeyPatch, run: Path, state: str
) -> None:
    monkeypatch.setattr(processes, "_TERM_GRACE_S", 0.1 if state == "stuck" else 10.0)
    segment = run / "psm_1"
    segment.touch()
    leader = start(run, ENGINE, segment, state)
    assert len(processes_of(run)) == 2
    status = end(run, leader)
    assert not segment.exists()
    assert status == (-signal.SIGKILL if state == "stuck" else -signal.SIGTERM)


@pytest.mark.usefixtures("short_graces")
@pytest.mark.parametrize("source", [DEAF, STOPPED], ids=["deaf", "stopped"])
def test_what_does_not_end_is_killed(run: Path, source: str) -> None:
    leader = start(run, source)
    (process,) = processes_of(run)
    assert process.deaf == (source is DEAF)
    assert end(run, leader) == -signal.SIGKILL


def test_a_runaway_is_found_and_ended(run: Path) -> None:
    leader = start(run, RUNAWAY)
    leader.wait(10)
    (runaway,) = processes_of(run)
    assert runaway.pid != leader.pid
    end(run, leader)
    assert not runaway.runs


def test_another_run_is_left_alone(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    ours, theirs = start(run, SLEEPER), start(other, SLEEPER)
    end(run, ours)
    assert [process.pid for process in processes_of(other)] == [theirs.pid]
    end(other, theirs)


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)
    assert is_running(os.getpid())


def test_a_pid_that_is_used_again_is_another_process(run: Path) -> None:
    leader = start(run, SLEEPER)
    (process,) = processes_of(run)
    earlier = Process(process.pid, process.started - 1)
    assert not earlier.runs
    earlier.signal(signal.SIGKILL)
    assert process.runs
    end(run, leader)
    assert not process.runs
    process.signal(signal.SIGKILL)


def test_what_is_said_of_a_process_is_what_psutil_says() -> None:
    ours, theirs = Process.of(os.getpid()), psutil.Process()
    assert ours is not None
    assert ours in set(all_processes())
    assert ours.parent == theirs.ppid()
    assert ours.name == theirs.name()
    assert ours.descriptors == theirs.num_fds()
    assert 0 < ours.memory_bytes <= theirs.memory_info().rss


def test_nothing_is_said_of_a_process_that_has_ended() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    process = Process.of(child.pid)
    assert process is not None
    child.communicate()
    assert not process.runs
    assert (process.parent, process.name, process.deaf) == (None, "", False)
    assert (process.memory_bytes, process.descriptors) == (0, 0)
    assert process.segments() == frozenset()


def test_shared_memory_is_unlinked_when_nobody_has_it_mapped() -> None:
    made = shared_memory.SharedMemory(create=True, size=4096)
    path = Path("/dev/shm") / made.name
    ours = Process.of(os.getpid())
    assert ours is not None
    assert path in ours.segments()
    assert unlink_unused([path]) == []
    assert path.exists()
    # Its tracker is told, so that it does not unlink it once more.
    made.unlink()
    path.touch()
    made.close()
    assert path not in ours.segments()
    assert unlink_unused([path, path.with_name("psm_none")]) == [path]
    assert not path.exists()


def test_what_others_unlink_or_own_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Path("/dev/shm")
    ours, gone, theirs = (shared / f"{tmp_path.name}-{os.getpid()}-{n}" for n in range(3))
    for path in (ours, gone, theirs):
        path.touch()
    unlink = Path.unlink

    def refusing(path: Path, missing_ok: bool = False) -> None:
        if path == theirs:
            raise PermissionError
        gone_meanwhile = path == gone
        unlink(path, missing_ok=missing_ok)
        if gone_meanwhile:
            raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refusing)
        assert unlink_unused([ours, gone, theirs]) == [ours]
    # It is still there to be removed.
    theirs.unlink()


@pytest.mark.usefixtures("short_graces")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_where_processes_cannot_be_opened_the_pid_has_to_do(
    run: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)
    leader = start(run, SLEEPER)
    (process,) = processes_of(run)
    Process(process.pid, process.started - 1).signal(signal.SIGKILL)
    assert process.runs
    assert end(run, leader) == -signal.SIGTERM


def test_the_mark_is_the_whole_value(run: Path) -> None:
    leader = start(run, SLEEPER)
    assert processes_of(run.with_name(run.name[:-1])) == frozenset()
    assert processes_of(Path(sys.prefix)) == frozenset()
    end(run, leader)
