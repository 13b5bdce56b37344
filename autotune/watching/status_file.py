"""``status.json``: where a study stands, for whoever looks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.watching.listener import Listener
from autotune.watching.progress import StudyProgress

STATUS_FILE = "status.json"

OFTEN_S = 1.0
"""The least between two writes while nothing but progress comes."""
SELDOM_S = 10.0
"""The same while there is no progress either, as when an engine starts."""


class StatusFile(Listener):
    """Writes the status of a study whenever it changes, from the moment that the study is ours.

    Args:
        path: of the file; its folder is made.
        progress: what is written.
        clock: seconds that only grow.
    """

    trouble = "its status file cannot be written"

    def __init__(
        self,
        path: Path,
        progress: StudyProgress,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._progress = progress
        self._clock = clock
        self._ours = False
        self._stage = ""
        self._written_at = -SELDOM_S

    def leased(self) -> None:
        # Before, another run may have the study, and this file of it.
        self._ours = True

    def changed(self) -> None:
        if self._ours:
            self._write()

    def progress(self, body: Mapping[str, Any]) -> None:
        self._write_after(OFTEN_S if body["stage"] == self._stage else 0.0)
        self._stage = body["stage"]

    def alive(self) -> None:
        self._write_after(SELDOM_S)

    def _write_after(self, least_s: float) -> None:
        if self._ours and self._clock() - self._written_at >= least_s:
            self._write()

    def _write(self) -> None:
        # Where it fails, the next try is no sooner than after a success.
        self._written_at = self._clock()
        text = json.dumps(self._progress.document(), indent=2, allow_nan=False)
        write_atomically(self._path, text.encode() + b"\n")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file, which only its owner may read; its folder is made where there is none.

    Whoever reads it finds the old content or the new one, also after a crash.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise FileExistsError(None, "what is there is no plain file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
