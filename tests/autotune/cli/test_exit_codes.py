from __future__ import annotations

import signal

import pytest

from autotune.cli.exit_codes import exit_code_of
from autotune.cli.signals import Interrupted
from autotune.errors import LeaseHeld, TooManyFailures, UsageError
from objectives.errors import ObjectiveError
from storage.errors import StorageUnavailable, UnknownStudy


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("odd"), 2),
        (TooManyFailures("five"), 5),
        (LeaseHeld("held"), 75),
        (ObjectiveError("odd budget", hint=""), 2),
        (UnknownStudy("night", []), 2),
        (StorageUnavailable("no database"), 4),
        (OSError(28, "No space left on device"), 4),
        (Interrupted(signal.SIGHUP), 129),
        (RuntimeError("a bug"), 1),
    ],
)
def test_an_error_stands_for_a_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code
