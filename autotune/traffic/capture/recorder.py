"""Records what the path of the traffic saw, beside that path and never in its way.

``put`` keeps a reference, nothing more. One thread reads, hashes and writes, a few times a second.
What it cannot keep up with, or cannot write, passes unrecorded, and how much that was is recorded
as soon as that is possible.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.traffic.capture.blocks import give_way
from autotune.traffic.capture.clock import now_s
from autotune.traffic.capture.finishing import (
    ChildFinisher,
    Finisher,
    finish,
    reason_of,
    trace_path,
)
from autotune.traffic.capture.part import SUFFIX, Header, Missed, Opener, PartFile, open_part
from autotune.traffic.capture.record import Record
from autotune.traffic.capture.sighting import Sighting

MAX_WAITING = 4096
"""Requests that have ended and wait to be written."""

MAX_HELD_BYTES = 256 * 2**20
"""Of bodies and responses of all requests, those in flight and those that wait."""

LINGER_S = 60.0
"""How long after its end a file still takes requests that had come before it."""

ROTATE_S = 3600.0
ROTATE_BYTES = 32 * 2**20

_BATCH = 64
TICK_S = 0.2
"""How often what waits is written."""

_SAY_AGAIN_S = 60.0

QUEUE_FULL = "the queue was full"
MEMORY_FULL = "the memory for recording was full"
FILE_REMOVED = "the file that they were in was removed"


def say_on_stderr(line: str) -> None:
    """Write a line to stderr, if there is one."""
    # A terminal may have been closed, which is no reason to stop recording.
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(f"capture: {line}\n")
            sys.stderr.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a recorder has done so far."""

    recorded: int = 0
    cancelled: int = 0
    failed: int = 0
    lost: int = 0

    def plus(self, other: Counts, *, times: int = 1) -> Counts:
        """Return the sum of both, of ``other`` so many times."""
        return Counts(
            recorded=self.recorded + times * other.recorded,
            cancelled=self.cancelled + times * other.cancelled,
            failed=self.failed + times * other.failed,
            lost=self.lost + times * other.lost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """When a file is finished and another begun."""

    every_s: float = ROTATE_S
    size_bytes: int = ROTATE_BYTES


@dataclass(slots=True)
class _Open:
    file: PartFile
    begun_s: float
    ended_s: float | None = None
    counts: Counts = Counts()


class Recorder:
    """Writes records into a folder that nobody else writes to.

    Args:
        folder: where files go; it is there.
        header: what each file says of itself.
        read: makes records of what was seen; whatever it raises is a gap.
        rotation: when files end.
        finisher: makes traces of files.
        opener: opens files.
        clock: seconds since 1970.
        say: takes a line for people.
        pause: called after each request, for other threads to run.
    """

    def __init__(
        self,
        folder: Path,
        header: Header,
        *,
        read: Callable[[Sighting], Sequence[Record]],
        rotation: Rotation = Rotation(),
        finisher: Finisher | None = None,
        opener: Opener = open_part,
        clock: Callable[[], float] = now_s,
        say: Callable[[str], None] = say_on_stderr,
        pause: Callable[[], None] = give_way,
    ) -> None:
        self.folder = folder
        self._header = header
        self._read = read
        self._rotation = rotation
        self._finisher = ChildFinisher() if finisher is None else finisher
        self._opener = opener
        self._clock = clock
        self._say = say
        self._pause = pause
        self._waiting: deque[Sighting | Record] = deque()
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._missed: dict[str, Missed] = {}
        self._said_s: dict[str, float] = {}
        self._parts: list[_Open] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autotune-capture", daemon=True)
        self.counts = Counts()
        self.paths: list[Path] = []

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def take(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be held, and count them if so."""
        with self._lock:
            if self._held_bytes + size > MAX_HELD_BYTES:
                return False
            self._held_bytes += size
            return True

    def give(self, size: int) -> None:
        """Count ``size`` bytes as no longer held."""
        with self._lock:
            self._held_bytes -= size

    @property
    def held_bytes(self) -> int:
        """What requests hold of the memory for recording."""
        return self._held_bytes

    def put(self, item: Sighting | Record) -> None:
        """Have a request recorded; never waits and never raises."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(item)
        else:
            self._release(item)
            self.miss(QUEUE_FULL)

    def miss(self, reason: str, requests: int = 1) -> None:
        """Note that requests passed unrecorded."""
        now_s = self._clock()
        with self._lock:
            self.counts = replace(self.counts, lost=self.counts.lost + requests)
            before = self._missed.get(reason)
            self._missed[reason] = (
                Missed(start_s=now_s, end_s=now_s, requests=requests, reason=reason)
                if before is None
                else replace(before, end_s=now_s, requests=before.requests + requests)
            )

    def close(self) -> list[Path]:
        """Write all that waits, finish all files and return the traces of this recorder."""
        self._closing.set()
        self._thread.join()
        return [path for path in self.paths if path.exists()]

    def _run(self) -> None:
        while self._waiting or not self._closing.is_set():
            # Nobody wakes this thread: the interpreter would change hands at every request.
            self._closing.wait(0.0 if self._waiting else TICK_S)
            self._turn(self._next_batch())
        self._turn([])
        # No traffic is left to be disturbed, so this thread finishes the last files itself.
        for part in self._closed(self._parts):
            self._finish(part)
        self._finisher.wait()

    def _turn(self, batch: Sequence[Sighting | Record]) -> None:
        try:
            self._forget_removed()
            self._write(batch)
            self._tell_gaps()
            self._rotate()
        # The top of a thread that must go on: without it the queue would fill in silence.
        except Exception as error:  # noqa: BLE001
            self.miss(f"the writer failed ({type(error).__name__})", len(batch))

    def _forget_removed(self) -> None:
        """Count what somebody has removed as unrecorded, and begin anew."""
        for part in [each for each in self._parts if not each.file.path.exists()]:
            self._parts.remove(part)
            part.file.close()
            if part.counts.recorded:
                with self._lock:
                    self.counts = self.counts.plus(part.counts, times=-1)
                self.miss(FILE_REMOVED, part.counts.recorded)

    def _next_batch(self) -> list[Sighting | Record]:
        """Return what waits, oldest first."""
        return [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]

    def _write(self, batch: Iterable[Sighting | Record]) -> None:
        for item in batch:
            records = self._records(item)
            self._release(item)
            for record in records:
                self._append(record)
            self._pause()

    def _records(self, item: Sighting | Record) -> Sequence[Record]:
        if isinstance(item, Record):
            return [item]
        try:
            return self._read(item)
        # Whatever a body makes the reader do, traffic passes and recording goes on. The message
        # may quote the body, so only its class is said.
        except Exception as error:  # noqa: BLE001
            self.miss(f"a request could not be read ({type(error).__name__})")
            return []

    def _append(self, record: Record) -> None:
        try:
            part = self._part_for(record.arrival_s)
            part.file.append(record.to_line())
        except OSError as error:
            self.miss(f"the file could not be written ({error.strerror})")
            return
        one = Counts(
            recorded=1,
            cancelled=int(record.ending == "cancelled"),
            failed=int(record.ending == "failed"),
        )
        part.counts = part.counts.plus(one)
        with self._lock:
            self.counts = self.counts.plus(one)

    def _release(self, item: Sighting | Record) -> None:
        if isinstance(item, Sighting) and item.held_bytes:
            self.give(item.held_bytes)

    def _part_for(self, arrival_s: float) -> _Open:
        """Return the file of the time when a request came, made if need be."""
        if not self._parts or self._parts[-1].ended_s is not None:
            now_s = self._clock()
            file = PartFile(self._fresh_path(now_s), self._header, opener=self._opener)
            self._parts.append(_Open(file, now_s))
        for part in self._parts:
            if part.ended_s is not None and arrival_s < part.ended_s:
                return part
        return self._parts[-1]

    def _fresh_path(self, now_s: float) -> Path:
        stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        number = 1
        while True:
            name = f"capture-{stamp}" + (f"-{number}" if number > 1 else "")
            path = self.folder / f"{name}{SUFFIX}"
            if not path.exists() and not trace_path(path).exists():
                return path
            number += 1

    def _tell_gaps(self) -> None:
        """Say once that requests pass unrecorded, and record how many once that is possible."""
        with self._lock:
            missed, self._missed = self._missed, {}
        for reason, gap in missed.items():
            self._say_gap(gap)
            try:
                self._part_for(gap.end_s).file.append(gap.to_line())
            except OSError:
                self._keep(reason, gap)

    def _keep(self, reason: str, gap: Missed) -> None:
        with self._lock:
            later = self._missed.get(reason)
            self._missed[reason] = (
                gap
                if later is None
                else replace(gap, end_s=later.end_s, requests=gap.requests + later.requests)
            )

    def _say_gap(self, gap: Missed) -> None:
        said_s = self._said_s.get(gap.reason)
        if said_s is None or gap.end_s - said_s >= _SAY_AGAIN_S:
            self._say(f"requests pass unrecorded: {gap.reason}")
            self._said_s[gap.reason] = gap.end_s

    def _rotate(self) -> None:
        now_s = self._clock()
        due = []
        for part in self._parts:
            if part.ended_s is None and (
                now_s >= part.begun_s + self._rotation.every_s
                or part.file.size >= self._rotation.size_bytes
            ):
                part.ended_s = now_s
            elif part.ended_s is not None and now_s >= part.ended_s + LINGER_S:
                due.append(part)
        for path in self._closed(due):
            self._finisher.begin(path)

    def _closed(self, parts: Iterable[_Open]) -> list[Path]:
        """Close files and return their paths."""
        ended = list(parts)
        self._parts = [part for part in self._parts if part not in ended]
        for part in ended:
            part.file.close()
            self.paths.append(trace_path(part.file.path))
        return [part.file.path for part in ended]

    def _finish(self, part: Path) -> None:
        try:
            finish(part)
        except (AutotuneError, OSError) as error:
            self._say(f"{part.name} stays unfinished: {reason_of(error)}")
