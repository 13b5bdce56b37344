from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.engine import processes
from autotune.engine.processes import end_group, is_running

# As the resource tracker of multiprocessing: deaf to SIGTERM, it ends when its work is done.
TRACKER = """
import os, signal, sys
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
read_end, write_end = os.pipe()
if os.fork():
    os.close(read_end)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("ready", flush=True)
    signal.pause()
os.close(write_end)
os.read(read_end, 1)
Path(sys.argv[1]).unlink()
"""


def test_a_tracker_of_shared_memory_gets_to_unlink_it(tmp_path: Path) -> None:
    segment = tmp_path / "psm_1"
    segment.touch()
    leader = subprocess.Popen(
        [sys.executable, "-c", TRACKER, str(segment)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert leader.stdout is not None
    assert leader.stdout.readline() == "ready\n"
    end_group(leader)
    leader.stdout.close()
    assert not segment.exists()


def test_a_group_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_TERM_GRACE_S", 0.1)
    source = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(flush=True); signal.pause()"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    leader.stdout.readline()
    end_group(leader)
    leader.stdout.close()
    assert leader.returncode == -9


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)
    assert is_running(os.getpid())
