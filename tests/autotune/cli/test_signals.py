from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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


def test_a_second_signal_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SECOND], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (143, "")
