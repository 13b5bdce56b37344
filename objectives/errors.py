"""The one error of this package: a value that cannot be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ObjectiveError(ValueError):
    """An error with a message for the ``error:`` line and a hint for the ``hint:`` line."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the closest known word, else the list of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}." if names else ""
