"""The exit code that an error stands for; the same as docs/exit-codes.md has them."""

from __future__ import annotations

from autotune.cli.signals import Interrupted
from autotune.errors import AutotuneError
from objectives.errors import ObjectiveError
from storage.errors import (
    FingerprintMismatch,
    LeaseTaken,
    StorageError,
    UnknownStudy,
    UnknownTrial,
    UnusableName,
)

_USAGE = (ObjectiveError, FingerprintMismatch, UnknownStudy, UnknownTrial, UnusableName)
_ENVIRONMENT = (StorageError, OSError)


def exit_code_of(error: BaseException) -> int:
    """Return the code with which the command ends."""
    if isinstance(error, (AutotuneError, Interrupted)):
        return error.exit_code
    if isinstance(error, LeaseTaken):
        return 75
    if isinstance(error, _USAGE):
        return 2
    return 4 if isinstance(error, _ENVIRONMENT) else 1
