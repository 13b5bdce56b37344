"""The one error of this package: a value that cannot be meant, and what was meant instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR = 0.6
"""Share of letters that two words must have in common, in order, for one to be proposed."""


class ObjectiveError(ValueError):
    """An error with a message for the ``error:`` line and a hint for the ``hint:`` line."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the closest known word, '' where none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=_NEAR)
    return f"did you mean {close[0]!r}?" if close else ""


def nearest_or_all(word: str, known: Iterable[str]) -> str:
    """As ``nearest``, but where none is close return the list of them, '' if that is empty."""
    names = list(known)
    return nearest(word, names) or (f"known: {', '.join(names)}." if names else "")
