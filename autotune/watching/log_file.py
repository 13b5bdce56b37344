"""The log of a study: what it says on stderr, with the time, and rotated."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from autotune.watching.listener import Ending, Listener
from autotune.watching.progress import stamp
from autotune.watching_settings import LogFormat

Level = Literal["info", "warning", "error"]
LogEvent = Literal["line", "begun", "finished", "ended"]
"""A line as any other, the ones at both ends of a trial, and those at the end of the run."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log, as JSON has it.

    Attributes:
        time: UTC.
        level: ``warning`` of a trial without a result, ``error`` of what ended the run.
        event: what the line is of.
        study: its name.
        trial: number of the one that ran; None between trials.
        message: in words, without secrets.
    """

    time: str
    level: Level
    event: LogEvent
    study: str
    trial: int | None
    message: str

    def written(self, log_format: LogFormat) -> str:
        if log_format == "json":
            return json.dumps(asdict(self), ensure_ascii=False)
        where = "" if self.trial is None else f"trial {self.trial}: "
        return f"{self.time} {self.level.upper():<7} {where}{self.message}"


class LogFile(Listener):
    """Appends lines to a file that only its owner may read; may be used by several threads.

    A file that is moved away, by whomever, is made anew. What cannot be written is lost, and
    said once.

    Args:
        path: of the file; its folder is made.
        study: its name.
        log_format: of the lines.
        rotate_bytes: size beyond which a file becomes ``PATH.1``, that one ``PATH.2`` and so on.
        keep: how many of those are kept.
        mask: returns a message without secrets.
        complain: says that something could not be written.
        now: the time of day, UTC.
    """

    def __init__(
        self,
        path: Path,
        *,
        study: str,
        log_format: LogFormat,
        rotate_bytes: int,
        keep: int,
        mask: Callable[[str], str],
        complain: Callable[[str], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = path
        self._study = mask(study)
        self._format = log_format
        self._rotate_bytes = rotate_bytes
        self._keep = keep
        self._mask = mask
        self._complain = complain
        self._now = now
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._torn = False
        self._in_trouble = False

    def write(
        self,
        text: str,
        *,
        level: Level = "info",
        event: LogEvent = "line",
        trial: int | None = None,
    ) -> None:
        """Append a message, one line for each of its own."""
        at = stamp(self._now())
        masked = self._mask(text)
        lines = [
            LogLine(at, level, event, self._study, trial, each.rstrip()).written(self._format)
            for each in masked.splitlines()
            if each.strip()
        ]
        try:
            with self._lock:
                self._append("".join(f"{line}\n" for line in lines).encode(errors="replace"))
        except (OSError, ValueError) as error:
            if not self._in_trouble:
                self._in_trouble = True
                reason = getattr(error, "strerror", None) or str(error)
                self._complain(f"its log file cannot be written: {reason}; the study goes on")

    def ended(self, ending: Ending) -> None:
        level: Level = "info" if ending.state == "finished" else "error"
        reason = "" if ending.reason is None else f": {ending.reason}"
        self.write(
            f"{ending.state}, exit code {ending.exit_code}{reason}", level=level, event="ended"
        )
        if ending.hint:
            self.write(f"hint: {ending.hint}", level=level, event="ended")

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def _append(self, data: bytes) -> None:
        if not data:
            return
        descriptor = self._opened()
        if self._torn:
            data = b"\n" + data
        size = os.fstat(descriptor).st_size
        if size and size + len(data) > self._rotate_bytes:
            self._rotate()
            descriptor = self._opened()
        self._torn = True
        written = os.write(descriptor, data)
        while written < len(data):
            # Of a disk that is full the next write says so.
            written += os.write(descriptor, data[written:])
        self._torn = False

    def _opened(self) -> int:
        """Return the descriptor of the file that has the name now."""
        if self._descriptor is not None and not self._is_at_path(self._descriptor):
            self._let_go()
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Of a pipe that nobody reads the opening would never end.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(self._path, flags, 0o600)
        return self._descriptor

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        """Move the files on by one; where that is impossible, the file grows."""
        if not self._path.is_file():
            return
        with suppress(OSError):
            for number in range(self._keep - 1, 0, -1):
                with suppress(FileNotFoundError):
                    self._numbered(number).replace(self._numbered(number + 1))
            self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _let_go(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
