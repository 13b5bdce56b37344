"""Everything that can go wrong and be said in one line.

AutotuneError                 exit 1
├── UsageError                exit 2    an option, a file or a value the user gave
│   ├── TraceError                      a trace that cannot be read, with its line
│   └── StudyMismatch                   a study name used again for another job
├── NothingFeasible           exit 3    finished, but nothing keeps the budget
├── EnvironmentFault          exit 4    GPU, disk, database or model
│   └── HostLost                        the engine host went away or fell silent
├── TooManyFailures           exit 5    failures of one class in a row
└── LeaseHeld                 exit 75   another controller has the study or the GPU

A failed trial is no exception but a row: see ``autotune.engine.protocol.Failure``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


class StudyMismatch(UsageError):
    """A study is resumed with another fingerprint than it was started with."""


class NothingFeasible(AutotuneError):
    """The study finished and no candidate keeps the budget."""

    exit_code = 3


class EnvironmentFault(AutotuneError):
    """The machine, the database or the model does not allow the job."""

    exit_code = 4


class HostLost(EnvironmentFault):
    """The engine host ended or stopped answering."""


class TooManyFailures(AutotuneError):
    """The same class of failure came too often in a row."""

    exit_code = 5


class LeaseHeld(AutotuneError):
    """Another process works on the same study, or with the same GPU."""

    exit_code = 75


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the known word closest to ``word``, or ''."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""
