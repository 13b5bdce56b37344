"""The first process of a container: here one that the kernel hands the orphans below it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.cli import first_process
from autotune.cli.first_process import become_child_of_first
from tests.autotune.engine.survival import script

pytestmark = pytest.mark.wire

ROOT = Path(__file__).resolve().parents[3]

# PR_SET_CHILD_SUBREAPER makes it for those below what the first process is for all.
FIRST = """
import ctypes, os, sys
from autotune.cli.first_process import look_after_child

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
look_after_child(os._exit)
"""
ORPHANS = """
import subprocess, time
from pathlib import Path

first = os.getppid()
leave = "import os; os.fork() and os._exit(0); os._exit(0)"
for _ in range(5):
    subprocess.run([sys.executable, "-S", "-c", leave], check=True)
children = Path(f"/proc/{first}/task/{first}/children")
while len(children.read_text().split()) > 1:
    time.sleep(0.005)
raise SystemExit(3)
"""
WAITING = """
import signal, time

got = []
for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(each, lambda signum, _: got.append(signum))
print("ready", flush=True)
while not got:
    time.sleep(0.005)
time.sleep(0.1)
print(*map(int, got), flush=True)
raise SystemExit(128 + got[0])
"""
KILLED = """
import signal

os.fork() or (os.setsid(), os.read(0, 1), os._exit(0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(source: str, **how: object) -> subprocess.Popen[str]:
    command: Sequence[str] = script(FIRST + source)
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command, text=True, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how
    )


def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it has forked"))
    become_child_of_first()


def test_the_first_process_runs_the_command_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(first_process, "look_after_child", given.append)
    become_child_of_first()
    assert given == [os._exit]


def test_orphans_are_waited_for_and_the_exit_code_is_that_of_the_child() -> None:
    with start(ORPHANS) as first:
        assert first.wait(20) == 3


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_passed_on_once(signum: signal.Signals) -> None:
    with start(WAITING) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        first.send_signal(signum)
        assert first.stdout.readline() == f"{int(signum)}\n"
        assert first.wait(20) == 128 + signum


def test_what_a_terminal_sends_to_both_is_not_passed_on() -> None:
    ours, theirs = pty.openpty()
    # Standard error is its terminal.
    take_it = "import fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0)\n"
    command = script(take_it + FIRST + WAITING)
    with subprocess.Popen(
        command,
        text=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        os.write(ours, termios.tcgetattr(ours)[6][termios.VINTR])
        assert first.stdout.readline() == f"{int(signal.SIGINT)}\n"
        assert first.wait(20) == 130
    os.close(ours)
    os.close(theirs)


def test_after_a_kill_whoever_cleans_up_is_waited_for() -> None:
    with start(KILLED) as first:
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.2)
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait(20) == 128 + signal.SIGKILL
