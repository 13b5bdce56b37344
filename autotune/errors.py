"""Everything that can go wrong and be said in one line.

AutotuneError                 exit 1
├── UsageError                exit 2    an option, a file or a value the user gave
│   └── TraceError                      a trace that cannot be read, with its line
├── NothingFeasible           exit 3    finished, but nothing keeps the budget
├── NoLongerApplies           exit 3    an export is about something else than what is here
├── EnvironmentFault          exit 4    GPU, disk, database or model
├── TooManyFailures           exit 5    failures of one class in a row
└── LeaseHeld                 exit 75   another controller has the study or the GPU

A failed trial is no exception but a row: see ``autotune.engine.protocol.Failure``.
"""

from __future__ import annotations

import re


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


class NoLongerApplies(AutotuneError):
    """An export was checked, and does not do here what its study says."""

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


_PLAIN_WORDS = (
    (r"Input should be a valid integer\b.*", "must be a whole number"),
    (r"Input should be a valid number\b.*", "must be a number"),
    (r"Input should be a valid (?:dictionary|mapping)\b.*", "must be `name: value` pairs"),
    (r"Input should be a valid list\b.*", "must be a list"),
    (r"Input should be a valid string\b.*", "must be a text"),
    (r"Input should be a valid boolean\b.*", "must be true or false"),
    (r"(?:Input is not|Input should be) a valid path\b.*", "must be a path"),
    (r"Input should be greater than or equal to", "must be at least"),
    (r"Input should be less than or equal to", "must be at most"),
    (r"Input should be greater than", "must be more than"),
    (r"Input should be", "must be"),
    (r"(?:String|List|Tuple|Value) should have", "must have"),
)
"""What pydantic says of values, and Typer after it, for people who know neither."""


def in_plain_words(message: str) -> str:
    """Return pydantic's message as it may follow a name: ``trials: must be a whole number``."""
    for pattern, plain in _PLAIN_WORDS:
        changed = re.sub(pattern, plain, message)
        if changed != message:
            return changed
    return message
