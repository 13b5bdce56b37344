from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from autotune.cli import main
from autotune.cli.signals import Interrupted, raised_signals

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


def test_nothing_takes_an_interruption_for_a_failure() -> None:
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize("note", ["", "it goes on"])
def test_any_command_ends_with_one_line_and_the_exit_code_of_its_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], note: str
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
    assert capsys.readouterr().err == f"SIGTERM: stopped{'; ' if note else ''}{note}.\n"


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raised_signals():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SECOND], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (143, "")
