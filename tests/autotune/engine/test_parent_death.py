from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from autotune.engine import parent_death
from autotune.engine.parent_death import HOST_VARIABLE, arm_in_engine, die_with_parent
from tests.autotune.engine.survival import end, read_pids, script, spawn, survivors

pytestmark = pytest.mark.wire

TIMEOUT_S = 20.0

# A parent starts a child, the child a grandchild; all pids are printed once all are armed.
CHAIN = """
import os, signal, subprocess, sys
from autotune.engine.parent_death import die_with_parent

source, level, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if level:
    die_with_parent(signal.SIGKILL, parent_pid=parent)
below = ""
if level < 2:
    command = [sys.executable, "-c", source, source, str(level + 1), str(os.getpid())]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    below = child.stdout.readline()
print(os.getpid(), below, end="" if below else "\\n", flush=True)
signal.pause()
"""

# An engine: started by a host, with vLLM's handler that only takes a note of SIGTERM.
ENGINE = """
import os, signal, sys
from autotune.engine import parent_death

parent_death.GRACE_S = parent_death._POLL_S = 0.05
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, lambda *_: None)
parent_death.arm_in_engine()
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""
HOST = """
import os, signal, subprocess, sys
from autotune.engine.parent_death import become_host

become_host()
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
print(os.getpid(), child.stdout.readline(), end="", flush=True)
signal.pause()
"""
SPAWNING_HOST = """
import multiprocessing, os, signal, sys
from autotune.engine import host
from autotune.engine.parent_death import become_host

become_host()
# As with ``python -m autotune.engine.host``.
sys.modules["__main__"] = host
child = multiprocessing.get_context("spawn").Process(target=signal.pause)
child.start()
print(os.getpid(), child.pid, flush=True)
signal.pause()
"""
FORKING_HOST = """
import os, signal
from autotune.engine.parent_death import become_host

become_host()
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    os.write(write_end, b"armed")
    while True:
        signal.pause()
os.read(read_end, 5)
print(os.getpid(), child, flush=True)
signal.pause()
"""

# The parent ends before its child asks for the signal.
LATE = """
import os, signal, sys
from autotune.engine import parent_death

parent = os.getppid()
print(os.getpid(), flush=True)
sys.stdin.readline()
while os.getppid() == parent:
    pass
{arm}
signal.pause()
"""
LATE_PARENT = """
import os, subprocess, sys

os.environ["AUTOTUNE_ENGINE_HOST"] = str(os.getpid())
subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=int(sys.argv[2]))
sys.stdin.readline()
"""


@pytest.fixture
def unarmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Make sure that the process of the tests itself is never armed."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("armed")

    monkeypatch.setattr(parent_death, "die_with_parent", refuse)
    threads = threading.active_count()
    yield monkeypatch
    assert threading.active_count() == threads


def test_children_and_grandchildren_die_with_a_killed_parent() -> None:
    parent = spawn(CHAIN, CHAIN, 0, 0)
    processes = read_pids(parent)
    assert len(processes) == 3
    end(parent)
    assert survivors(processes[1:], timeout_s=TIMEOUT_S) == []


def test_the_chain_breaks_below_a_killed_child_only() -> None:
    parent = spawn(CHAIN, CHAIN, 0, 0)
    _, child, grandchild = read_pids(parent)
    child.kill()
    assert survivors([grandchild], timeout_s=TIMEOUT_S) == []
    assert parent.poll() is None
    end(parent)


@pytest.mark.parametrize("hearing", ["good", "deaf"])
def test_an_engine_dies_with_its_host_even_if_it_ignores_the_request(hearing: str) -> None:
    host = spawn(HOST, ENGINE, hearing)
    _, engine = read_pids(host)
    end(host)
    assert survivors([engine], timeout_s=TIMEOUT_S) == []


@pytest.mark.parametrize("source", [FORKING_HOST, SPAWNING_HOST], ids=["forked", "spawned"])
def test_an_engine_without_plugins_dies_with_its_host(source: str) -> None:
    host = spawn(source)
    _, engine = read_pids(host)
    end(host)
    assert survivors([engine], timeout_s=TIMEOUT_S) == []


@pytest.mark.parametrize(
    "arm",
    [
        "parent_death.die_with_parent(signal.SIGTERM, parent_pid=parent)",
        "parent_death.arm_in_engine()",
    ],
    ids=["die_with_parent", "arm_in_engine"],
)
def test_arming_after_the_parent_has_died_ends_the_process(arm: str) -> None:
    read_end, write_end = os.pipe()
    parent = subprocess.Popen(
        script(LATE_PARENT, LATE.format(arm=arm), read_end),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[read_end],
    )
    os.close(read_end)
    (child,) = read_pids(parent)
    end(parent)
    assert parent.stdin is not None
    parent.stdin.close()
    os.write(write_end, b"\n")
    os.close(write_end)
    assert survivors([child], timeout_s=TIMEOUT_S) == []


def test_arming_twice_is_arming_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    may_end = threading.Event()

    def wait(_parent_pid: int) -> None:
        may_end.wait()

    monkeypatch.setattr(parent_death, "die_with_parent", lambda *_, **__: asked.append("once"))
    monkeypatch.setattr(parent_death, "_kill_after_parent", wait)
    monkeypatch.setenv(HOST_VARIABLE, str(os.getppid()))
    before = set(threading.enumerate())
    arm_in_engine()
    arm_in_engine()
    (watcher,) = set(threading.enumerate()) - before
    may_end.set()
    watcher.join()
    assert asked == ["once"]


def test_nothing_is_armed_outside_our_engines(unarmed: pytest.MonkeyPatch) -> None:
    unarmed.delenv(HOST_VARIABLE, raising=False)
    arm_in_engine()


def test_the_host_itself_is_not_armed_as_an_engine(unarmed: pytest.MonkeyPatch) -> None:
    unarmed.setenv(HOST_VARIABLE, str(os.getpid()))
    arm_in_engine()


def test_a_process_of_another_program_outlives_its_parent() -> None:
    source = ENGINE.replace("while True", "sys.stdout.close()\nwhile True")
    parent = spawn(HOST.replace("become_host()\n", "", 2), source, "good")
    _, child = read_pids(parent)
    end(parent)
    assert survivors([child], timeout_s=0.5) == [child]
    child.kill()


def test_a_refused_request_is_an_error() -> None:
    with pytest.raises(OSError, match="Invalid argument") as caught:
        die_with_parent(10_000, parent_pid=os.getppid())
    assert caught.value.errno == errno.EINVAL
