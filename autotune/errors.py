"""Everything that can go wrong and be said in one line.

AutotuneError                 exit 1
├── UsageError                exit 2    an option, a file or a value the user gave
│   └── TraceError                      a trace that cannot be read, with its line
├── NothingFeasible           exit 3    finished, but nothing keeps the budget
├── EnvironmentFault          exit 4    GPU, disk, database or model
├── TooManyFailures           exit 5    failures of one class in a row
└── LeaseHeld                 exit 75   another controller has the study or the GPU

A failed trial is no exception but a row: see ``autotune.engine.protocol.Failure``.
"""

from __future__ import annotations


class AutotuneError(Exception):
    """An error with a message for the ``error:`` line and a hint for the ``hint:`` line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AutotuneError):
    """The user asked for something that cannot be meant."""

    exit_code = 2


class TraceError(UsageError):
    """A trace file that cannot be used; the message names file and line."""


class NothingFeasible(AutotuneError):
    """The study finished and no candidate keeps the budget."""

    exit_code = 3


class EnvironmentFault(AutotuneError):
    """The machine, the database or the model does not allow the job."""

    exit_code = 4


class TooManyFailures(AutotuneError):
    """The same class of failure came too often in a row."""

    exit_code = 5


class LeaseHeld(AutotuneError):
    """Another process works on the same study, or with the same GPU."""

    exit_code = 75
