from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from autotune.__main__ import main as entry
from autotune.cli import main
from autotune.cli.signals import Interrupted, heard_by, raised_signals, shown_by

ROOT = Path(__file__).resolve().parents[3]
SECOND = """
import signal
from autotune.cli.signals import Interrupted, raised_signals
with raised_signals():
    try:
        signal.raise_signal(signal.SIGINT)
    except Interrupted:
        signal.raise_signal(signal.SIGTERM)
print("not reached")
"""
PUT_OFF = """
import signal
from autotune.cli.signals import put_off_signals, raised_signals
with raised_signals(), put_off_signals("a file is being finished"):
    signal.raise_signal(signal.SIGINT)
    print("finished", flush=True)
    signal.raise_signal(signal.SIGTERM)
print("not reached")
"""
SIGNALLED = """
import os, signal, sys


class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.Signals[os.environ["SEND"]])
        return None


sys.meta_path.insert(0, Sender())
"""


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_becomes_an_exception_with_its_exit_code(
    signum: signal.Signals, code: int
) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(Interrupted, match=signum.name) as caught, raised_signals():
        signal.raise_signal(signum)
    assert caught.value.exit_code == code
    assert signal.getsignal(signum) is before


def test_who_listens_hears_of_the_first_signal_as_it_comes() -> None:
    heard: list[str] = []
    with pytest.raises(Interrupted), raised_signals():
        try:
            with heard_by(lambda: heard.append("signal")):
                signal.raise_signal(signal.SIGTERM)
        finally:
            heard.append("end")
    with pytest.raises(Interrupted), raised_signals():
        signal.raise_signal(signal.SIGTERM)
    assert heard == ["signal", "end"]


def test_nothing_takes_an_interruption_for_a_failure() -> None:
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize("note", ["", "it goes on"])
def test_any_command_answers_a_signal_at_once_and_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], note: str
) -> None:
    def command(**_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Interrupted as interruption:
            if note:
                interruption.add_note(note)
            raise

    monkeypatch.setattr(main, "app", command)
    monkeypatch.setattr(sys, "argv", ["autotune"])
    with pytest.raises(SystemExit) as caught:
        main.run()
    assert caught.value.code == 143
    at_once, at_last = capfd.readouterr().err.splitlines()
    assert at_once == "SIGTERM: stopping; once more to end at once."
    assert at_last == f"SIGTERM: stopped{'; ' if note else ''}{note}."


def test_what_redraws_the_terminal_says_that_we_stop(capfd: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    with pytest.raises(Interrupted), raised_signals(), shown_by(shown.append):
        signal.raise_signal(signal.SIGINT)
    assert shown == ["SIGINT: stopping; once more to end at once."]
    assert capfd.readouterr().err == ""


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raised_signals():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_the_command_is_imported_is_answered_too(
    tmp_path: Path, name: str, code: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGNALLED)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "SEND": name},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{name}: stopped.\n")


def test_the_installed_command_answers_signals_from_its_first_import_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"autotune": "autotune.__main__:main"}


def test_signals_are_answered_before_during_and_after_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heeded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in heeded}
    during: list[object] = []

    def command(**_: object) -> None:
        during.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(main, "app", command)
    monkeypatch.setattr(sys, "argv", ["autotune"])
    try:
        with pytest.raises(SystemExit):
            entry()
        after = signal.getsignal(signal.SIGINT)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert len({before[signal.SIGINT], during[0], after}) == 3


def test_a_second_signal_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SECOND], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (143, "")


def test_what_must_be_finished_is_finished_unless_a_second_signal_comes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PUT_OFF], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (143, "finished\n")
    assert done.stderr == "SIGINT: a file is being finished; once more to end at once.\n"
