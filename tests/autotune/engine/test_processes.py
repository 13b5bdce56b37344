from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from autotune.engine import processes
from autotune.engine.processes import end_group, is_running
from tests.autotune.engine.survival import script

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


@pytest.fixture
def short_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_TERM_GRACE_S", 0.1)
    monkeypatch.setattr(processes, "_TRACKER_GRACE_S", 0.1)


def start_group(source: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a source as the leader of a group, and wait for its first line."""
    leader = subprocess.Popen(
        script(source, *arguments), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert leader.stdout is not None
    with leader.stdout:
        leader.stdout.readline()
    return leader


@pytest.mark.parametrize("state", ["willing", "stuck"])
def test_the_tracker_of_shared_memory_gets_to_unlink_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    monkeypatch.setattr(processes, "_TERM_GRACE_S", 0.1 if state == "stuck" else 10.0)
    segment = tmp_path / "psm_1"
    segment.touch()
    leader = start_group(ENGINE, segment, state)
    end_group(leader)
    assert not segment.exists()
    assert leader.returncode == (-signal.SIGKILL if state == "stuck" else -signal.SIGTERM)


@pytest.mark.usefixtures("short_graces")
def test_a_group_that_does_not_end_is_killed() -> None:
    leader = start_group(DEAF)
    end_group(leader)
    assert leader.returncode == -signal.SIGKILL


def test_a_group_that_has_ended_is_reaped() -> None:
    leader = start_group("")
    end_group(leader)
    assert leader.returncode == 0
    end_group(leader)


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)
    assert is_running(os.getpid())
