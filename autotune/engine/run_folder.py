"""The folder of a run: its sockets, and a record of all that it has started.

``/tmp/vllm-autotune-run-XXXXXXXX``, for the owner alone. vLLM's ZeroMQ sockets go there, and
``processes.json`` names every process with its start time and every shared memory segment. What
ends a run removes all of it: the controller itself, else its janitor, else the next run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from autotune.engine.processes import (
    Process,
    end_processes,
    is_segment,
    processes_of,
    unlink_unused,
)
from autotune.errors import EnvironmentFault

RUNS = Path("/tmp")  # noqa: S108 - one place for all jobs; TMPDIR may differ between them.
PREFIX = "vllm-autotune-run-"

_RECORD = "processes.json"
_VERSION = 1
_MOST_BYTES = 2**20
_UNRECORDED_S = 600.0


@dataclass(frozen=True, slots=True)
class Remains:
    """What a run that was cut short had left, and what has been ended and removed.

    Attributes:
        folder: of the run.
        controller: of the run, None if its record could not be read.
        processes: that were ended.
        names: what they called themselves, in the same order.
        segments: shared memory that was unlinked.
    """

    folder: Path
    controller: Process | None
    processes: tuple[Process, ...]
    names: tuple[str, ...]
    segments: tuple[Path, ...]


class RunFolder:
    """The folder of one run, made and recorded at once."""

    def __init__(self, path: Path, controller: Process | None) -> None:
        self.path = path
        self._controller = controller
        self._janitor: Process | None = None
        self._place = _place()
        self._processes: frozenset[Process] = frozenset()
        self._segments: frozenset[Path] = frozenset()

    @classmethod
    def create(cls, parent: Path = RUNS) -> Self:
        """Make a folder for this process's run.

        Raises:
            EnvironmentFault: it cannot be made.
        """
        controller = _self()
        try:
            folder = cls(Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)), controller)
            try:
                folder._write()
            except BaseException:
                # Without a record nobody could tell that it is abandoned.
                folder.remove()
                raise
        except OSError as error:
            raise EnvironmentFault(
                f"cannot make a folder in {parent}: {error.strerror}",
                hint=f"engines need {parent} for their sockets: free or mount it",
            ) from error
        return folder

    @classmethod
    def found(cls, path: Path) -> Self:
        """Return the folder of another run, as far as its record can be read."""
        folder = cls(path, None)
        record = _read(path / _RECORD)
        folder._place = str(record.get("place", ""))
        if folder._place == _place():
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                folder._controller = _process(record["controller"])
                folder._janitor = _process(record["janitor"]) if record["janitor"] else None
                folder._processes = frozenset(map(_process, record["processes"]))
                folder._segments = frozenset(filter(is_segment, map(Path, record["segments"])))
        return folder

    @property
    def abandoned(self) -> bool:
        """Whether its controller is no more: it has ended, or the machine with it."""
        if self._controller is not None:
            return not self._controller.runs
        if self._place not in ("", _place()):
            # A container that shares our folder has pids of its own, which we cannot look up.
            return self._place.partition(" ")[0] != _place().partition(" ")[0]
        return self._age_s() > _UNRECORDED_S and not processes_of(self.path)

    def watched_by(self, janitor: int) -> None:
        """Write down the janitor of the run, which ends with the controller or cleans up."""
        self._janitor = Process.of(janitor)
        with contextlib.suppress(OSError):
            self._write()

    def record(self) -> None:
        """Write down what runs now and which shared memory it has; a full disk is no obstacle."""
        processes = self._processes | processes_of(self.path)
        segments = self._segments.union(*(each.segments() for each in processes))
        if (processes, segments) != (self._processes, self._segments):
            self._processes, self._segments = processes, segments
            # The environment of the processes tells them too.
            with contextlib.suppress(OSError):
                self._write()

    def running(self) -> frozenset[Process]:
        """Return what runs of this run: what carries its mark, and what was recorded."""
        return processes_of(self.path) | {each for each in self._processes if each.runs}

    def shared_memory(self) -> frozenset[Path]:
        """Return the recorded segments that exist."""
        return frozenset(path for path in self._segments if path.exists())

    def sockets(self) -> frozenset[Path]:
        """Return the socket files in the folder."""
        with contextlib.suppress(FileNotFoundError):
            return frozenset(each for each in self.path.iterdir() if each.is_socket())
        return frozenset()

    def end_all(self) -> Remains:
        """End every process of the run but its janitor, and unlink its shared memory."""
        running = sorted(self.running())
        names = tuple(each.name for each in running)
        segments = self._segments.union(*(each.segments() for each in running))
        end_processes(self.running)
        self.remove_stale_sockets()
        return Remains(
            folder=self.path,
            controller=self._controller,
            processes=tuple(running),
            names=names,
            segments=tuple(unlink_unused(segments)),
        )

    def remove_stale_sockets(self) -> None:
        """Remove the socket files that nobody answers; vLLM leaves some at every stop."""
        for path in self.sockets():
            if not _is_answered(path):
                path.unlink(missing_ok=True)

    def end_janitor(self) -> None:
        """End a janitor that has not ended with its controller: somebody has stopped it."""
        if self._janitor is not None:
            self._janitor.signal(signal.SIGKILL)

    def remove(self) -> None:
        """Remove the folder with everything in it; safe to repeat."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _age_s(self) -> float:
        try:
            return time.time() - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _write(self) -> None:
        record = {
            "version": _VERSION,
            "place": self._place,
            "controller": _json(self._controller) if self._controller else None,
            "janitor": _json(self._janitor) if self._janitor else None,
            "processes": [_json(each) for each in sorted(self._processes)],
            "segments": [str(path) for path in sorted(self._segments)],
        }
        temporary = self.path / f".{_RECORD}"
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.path / _RECORD)


def end_left_over(parent: Path = RUNS) -> list[Remains]:
    """End and remove what runs of ours have left whose controller is no more.

    Only folders of this user count, and only processes of this machine since it came up.
    """
    remains = []
    for path in sorted(parent.glob(f"{PREFIX}*")):
        if not _is_our_folder(path):
            continue
        folder = RunFolder.found(path)
        if folder.abandoned:
            remains.append(folder.end_all())
            folder.end_janitor()
            folder.remove()
    return [each for each in remains if each.processes or each.segments]


def _is_our_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink()
    return False


def _self() -> Process:
    process = Process.of(os.getpid())
    if process is None:
        raise EnvironmentFault("/proc does not show this process", hint="mount /proc")
    return process


def _json(process: Process) -> dict[str, int]:
    return {"pid": process.pid, "started": process.started}


def _process(fields: Mapping[str, int]) -> Process:
    return Process(int(fields["pid"]), int(fields["started"]))


def _place() -> str:
    """Return what a pid and a start time belong to: one boot, one namespace of processes."""
    boot = "unknown"
    # Some sandboxes have none.
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115


def _is_answered(path: Path) -> bool:
    """Whether a process listens at a socket file."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.setblocking(False)
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def _read(path: Path) -> Mapping[str, Any]:
    """Return a record, nothing where it is none: it may be cut off, or not ours at all."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_size <= _MOST_BYTES:
            record = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(record, dict) and record.get("version") == _VERSION:
                return record
    return {}
