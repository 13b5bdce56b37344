"""Results as files, and streams that may be lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from autotune.errors import EnvironmentFault


class TolerantStream:
    """A stream for progress: once it is lost, what is written is dropped in silence.

    A terminal may be closed and a pipe may break while engines run for hours; no line of
    progress is worth a study.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = False
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def isatty(self) -> bool:
        return not self._lost and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _attempt(self, action: Callable[[], object]) -> None:
        if self._lost:
            return
        try:
            action()
        # A stream that was closed under us is a ValueError.
        except (OSError, ValueError):
            self._lost = True


def write_text(
    path: Path, text: str, *, hint: str = "name a file in a folder that you may write"
) -> None:
    """Write a result.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}", hint=hint) from error
