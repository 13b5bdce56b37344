"""The processes of a run: which they are, what they hold, and how they end.

A run is one controller with the engine hosts that it starts. Everything that they start in turn
carries the variable ``AUTOTUNE_RUN`` in its environment, and so can be found whatever group,
session or parent it has. A process is known by its pid *and* its start time, since a pid is used
again and both together are not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

RUN_VARIABLE = "AUTOTUNE_RUN"
"""Set for the engine host, and by inheritance for all below it: the folder of the run."""

_PROC = Path("/proc")
_SHM = "/dev/shm/"  # noqa: S108 - where Linux keeps it.
_TERM_GRACE_S = 5.0
_TRACKER_GRACE_S = 2.0
_KILL_GRACE_S = 5.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """A process for certain; ``started`` is in clock ticks since the machine came up."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the process that has ``pid`` now; None if it is a zombie or there is none."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def runs(self) -> bool:
        return type(self).of(self.pid) == self

    @property
    def parent(self) -> int | None:
        """The pid of its parent, None when it has ended."""
        fields = _stat(self.pid)
        return None if fields is None else int(fields[1])

    @property
    def name(self) -> str:
        """What the process calls itself, '' when it has ended."""
        with contextlib.suppress(OSError):
            return (_PROC / str(self.pid) / "comm").read_text(errors="replace").strip()
        return ""

    @property
    def started_at(self) -> datetime | None:
        """When it started, ended or not; None where the kernel does not say when it came up."""
        with contextlib.suppress(OSError, StopIteration):
            lines = (_PROC / "stat").read_text(encoding="ascii").splitlines()
            up = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
            return datetime.fromtimestamp(up + self.started / os.sysconf("SC_CLK_TCK"), UTC)
        return None

    @property
    def deaf(self) -> bool:
        """Whether it ignores SIGTERM, as multiprocessing's resource tracker does."""
        return bool(int(_status(self.pid).get("SigIgn", "0"), 16) >> (signal.SIGTERM - 1) & 1)

    @property
    def memory_bytes(self) -> int:
        """Memory of its own, neither shared nor backed by a file; 0 when it has ended."""
        return int(_status(self.pid).get("RssAnon", "0 kB").split()[0]) * 1024

    @property
    def descriptors(self) -> int:
        """How many files and sockets it has open; 0 when it has ended."""
        with contextlib.suppress(OSError):
            return len(os.listdir(_PROC / str(self.pid) / "fd"))  # noqa: PTH208
        return 0

    def segments(self) -> frozenset[Path]:
        """Return the POSIX shared memory that it has mapped and nobody has unlinked."""
        with contextlib.suppress(OSError):
            maps = (_PROC / str(self.pid) / "maps").read_text(errors="replace")
            paths = {_SHM + line.partition(_SHM)[2] for line in maps.splitlines() if _SHM in line}
            return frozenset(Path(path) for path in paths if not path.endswith(" (deleted)"))
        return frozenset()

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to this process and, whatever its pid is used for later, to no other."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return
            except OSError:
                # Sandboxes lack the call or forbid it: then the pid has to do.
                if self.runs:
                    os.kill(self.pid, signum)
                return
            try:
                if self.runs:
                    signal.pidfd_send_signal(descriptor, signum)
            finally:
                os.close(descriptor)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return Process.of(pid) is not None


def processes_of(run: Path) -> frozenset[Process]:
    """Return what runs with the variable of this run in its environment."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    return frozenset(each for each in all_processes() if mark in _environment(each.pid))


def all_processes() -> Iterator[Process]:
    """Yield every process of this machine, or of this container, that runs."""
    for entry in os.listdir(_PROC):  # noqa: PTH208
        if entry.isdecimal() and (process := Process.of(int(entry))) is not None:
            yield process


def end_processes(find: Callable[[], Iterable[Process]]) -> None:
    """End what ``find`` returns, and what it returns then, until it returns nothing.

    All are asked first, then killed, except those that are deaf to the request:
    multiprocessing's resource tracker is, for it has to unlink the shared memory of the others
    when they are dead. It is killed last, if it does not end by itself. A process that the
    kernel does not let go of is left after some seconds.
    """
    try:
        for process in find():
            process.signal(signal.SIGTERM)
        if not _end_within(find, _TERM_GRACE_S):
            for process in find():
                if not process.deaf:
                    process.signal(signal.SIGKILL)
            _end_within(find, _TRACKER_GRACE_S)
    finally:
        deadline_s = time.monotonic() + _KILL_GRACE_S
        while (left := list(find())) and time.monotonic() < deadline_s:
            for process in left:
                process.signal(signal.SIGKILL)
            time.sleep(_POLL_S)


def is_segment(path: Path) -> bool:
    """Whether a path is that of POSIX shared memory: a plain file right where Linux keeps it."""
    return f"{path.parent}/" == _SHM and ".." not in path.name and not path.is_symlink()


def unlink_unused(segments: Iterable[Path]) -> list[Path]:
    """Unlink the shared memory that nobody has mapped any more; return what was unlinked."""
    left = {path for path in segments if is_segment(path) and path.is_file()}
    if left:
        left -= {path for process in all_processes() for path in process.segments()}
    return sorted(filter(_unlinked, left))


def _unlinked(path: Path) -> bool:
    """Unlink a file; False if it is gone already, or another user's."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        path.unlink()
        return True
    return False


def _end_within(find: Callable[[], Iterable[Process]], grace_s: float) -> bool:
    deadline_s = time.monotonic() + grace_s
    while list(find()):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the state on, which is the third."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is a name in parentheses that may hold anything.
    return text[text.rindex(")") + 2 :].split()


def _status(pid: int) -> dict[str, str]:
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
