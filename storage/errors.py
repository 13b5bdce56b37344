"""What can go wrong with the database, each with a message and a hint for the user.

StorageError
├── StorageUnavailable      cannot be opened, read or written
├── NewerSchema             written by a later version
├── LeaseTaken              another controller has the study
├── UnusableName            a study cannot have this name
├── UnknownStudy            no such study, or none at all
├── UnknownTrial            no such trial in the study
└── FingerprintMismatch     a study name used again for another job
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from objectives.errors import nearest

_SHOWN_DIFFERENCES = 5
_SHOWN_CHARACTERS = 60


class StorageError(Exception):
    """An error with a message for the ``error:`` line and a hint for the ``hint:`` line."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class StorageUnavailable(StorageError):
    """The database cannot be opened, read or written.

    Attributes:
        url: The database with its password, by which to mask what a driver says of it; None
            where no driver was asked.
        passing: Whether the same may well succeed a little later: another program has the file
            locked, or the server is down.
        full: Whether its disk has no room.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        url: str | None = None,
        passing: bool = False,
        full: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.url = url
        self.passing = passing
        self.full = full


class NewerSchema(StorageError):
    """The tables were written by a later version of the program."""

    def __init__(self, url: str, revision: str) -> None:
        super().__init__(
            f"{url} has schema {revision!r}, which this version does not know.",
            hint="Upgrade vllm-autotune, or choose another database with --storage.",
        )


class LeaseTaken(StorageError):
    """Another controller works on the study, on whatever machine.

    Attributes:
        host: Where it runs.
        pid: Its number there.
        since: When it began, UTC in ISO 8601.
    """

    def __init__(self, message: str, *, hint: str, host: str, pid: int, since: str) -> None:
        super().__init__(message, hint=hint)
        self.host = host
        self.pid = pid
        self.since = since

    def with_hint(self, hint: str) -> LeaseTaken:
        """Return the same error with another hint."""
        return LeaseTaken(self.message, hint=hint, host=self.host, pid=self.pid, since=self.since)


class UnusableName(StorageError):
    """A study cannot have this name."""


class UnknownStudy(StorageError):
    """There is no study of this name; without a name, no study at all."""

    def __init__(self, name: str | None, known: Iterable[str]) -> None:
        names = list(known)
        if not names:
            message = "The database holds no study yet."
            hint = (
                "Start one with `autotune tune`, or choose another database with --storage. One "
                "that has just begun is here once its calibration has ended."
            )
        else:
            message = f"There is no study named {_short(name)}."
            close = nearest(name or "", names)
            meant = f"{close[0].upper()}{close[1:]} " if close else ""
            hint = f"{meant}`autotune studies` lists them all."
        super().__init__(message, hint=hint)
        self.name = name


class UnknownTrial(StorageError):
    """The study has no trial of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"The study has no trial {number}.", hint="`autotune trials` lists its trials."
        )
        self.number = number


class Difference(NamedTuple):
    """One entry in which two fingerprints differ; the key is a dotted path.

    An entry that one side lacks is None there.
    """

    key: str
    stored: Any
    given: Any


class FingerprintMismatch(StorageError):
    """A study is resumed with another fingerprint than it was started with."""

    def __init__(self, name: str, diff: Sequence[Difference]) -> None:
        shown = "; ".join(
            f"{key}: {_short(stored)} before, {_short(given)} now"
            for key, stored, given in diff[:_SHOWN_DIFFERENCES]
        )
        more = len(diff) - _SHOWN_DIFFERENCES
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(
            f"Study {_short(name)} was started with other settings: {shown}{rest}.",
            hint="Give the earlier settings to resume it, or another --study-name to start anew.",
        )
        self.diff = list(diff)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
