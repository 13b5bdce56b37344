"""Keeps the logs of engines from filling the disk, without ever making an engine wait.

An engine writes to its file itself, always at the end. What is cut out is the middle: how it was
started stands at the beginning, and why it failed at the end.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from autotune.supervision_settings import LOG_BYTES

_EVERY_S: Final = 1.0
_KEPT_QUARTERS: Final = 4
_COPIED_BYTES: Final = 2**20


class CappedLogs:
    """Looks once a second at the files that are written, and cuts those that are too long.

    Args:
        limit_bytes: size beyond which a quarter of it is kept of each end.
    """

    def __init__(self, limit_bytes: int = LOG_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._paths: frozenset[Path] = frozenset()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, *paths: Path) -> None:
        """Look at these files from now on, and for the last time at those before."""
        self.look()
        self._paths = frozenset(paths)

    def start(self) -> None:
        """Begin to look; safe to repeat."""
        if self._thread is None:
            self._done.clear()
            self._thread = threading.Thread(target=self._run, name="autotune-logs", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look once more, and end; safe to repeat."""
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self._thread = None
        self.look()

    def _run(self) -> None:
        while not self._done.wait(_EVERY_S):
            self.look()

    def look(self) -> None:
        """Cut those that are too long by now."""
        for path in self._paths:
            # One that is gone, or cannot be written, must not hurt a measurement.
            with suppress(OSError):
                cut_middle(path, self._limit_bytes)


def cut_middle(path: Path, limit_bytes: int) -> bool:
    """Cut a log beyond its limit to a quarter of it from each end; return whether it was.

    In place, since others write to it; they must do so at the end (``O_APPEND``). What comes
    while the end is moved may be lost.

    Raises:
        OSError: there is no such file, or it cannot be written.
    """
    quarter = limit_bytes // _KEPT_QUARTERS
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size <= limit_bytes:
            return False
        cut = f"\n… {size - 2 * quarter} bytes of this log were cut out here …\n".encode()
        file.seek(quarter)
        file.write(cut)
        to, since = quarter + len(cut), size - quarter
        while data := os.pread(file.fileno(), _COPIED_BYTES, since):
            os.pwrite(file.fileno(), data, to)
            to, since = to + len(data), since + len(data)
            # A flood may write as fast as this copies.
            if to > limit_bytes:
                break
        file.truncate(to)
    return True
