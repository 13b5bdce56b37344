"""What the processors of this machine do, and some of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MACHINE_FIGURES = (
    "cpu_busy_ratio",
    "cpu_stolen_ratio",
    "own_cpu_ratio",
    "own_memory_bytes",
)

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_IDLE, _WAITING_FOR_DISK, _STOLEN = 3, 4, 7
_FIRST_GUEST = 8  # Guests' time is part of users' already.


@dataclass(frozen=True, slots=True)
class _Ticks:
    """Processor time since the machine came up, in clock ticks."""

    total: int
    idle: int
    stolen: int
    own: dict[int, int] = field(default_factory=dict)


class MachineMeter:
    """Reads ``/proc`` again and again; a container sees the whole machine there.

    Args:
        pids: processes whose figures are added up as our own.
        proc: where the kernel's files are.
    """

    def __init__(self, pids: Iterable[int], *, proc: Path = Path("/proc")) -> None:
        self._pids = tuple(pids)
        self._proc = proc
        self._before: _Ticks | None = None

    def read(self) -> dict[str, float]:
        """Return the figures of ``MACHINE_FIGURES`` that there are.

        Shares are of all processors over the time since the last reading, so that the first has
        none.
        """
        found = {}
        before, now = self._before, self._ticks()
        self._before = now
        if before is not None and now is not None and now.total > before.total:
            passed = now.total - before.total
            # The kernel's count of waiting may also fall.
            idle = max(0, now.idle - before.idle)
            found["cpu_busy_ratio"] = max(0.0, 1 - idle / passed)
            found["cpu_stolen_ratio"] = (now.stolen - before.stolen) / passed
            if both := before.own.keys() & now.own.keys():
                own = sum(now.own[pid] - before.own[pid] for pid in both)
                found["own_cpu_ratio"] = own / passed
        resident = [
            pages for pid in self._pids if (pages := self._resident_pages(pid)) is not None
        ]
        if resident:
            found["own_memory_bytes"] = float(sum(resident) * _PAGE_BYTES)
        return found

    def _ticks(self) -> _Ticks | None:
        line = self._text("stat").partition("\n")[0].split()
        if not line or line[0] != "cpu" or len(line) <= _FIRST_GUEST:
            return None
        spent = [int(each) for each in line[1 : _FIRST_GUEST + 1]]
        own = {pid: ticks for pid in self._pids if (ticks := self._own_ticks(pid)) is not None}
        return _Ticks(sum(spent), spent[_IDLE] + spent[_WAITING_FOR_DISK], spent[_STOLEN], own)

    def _own_ticks(self, pid: int) -> int | None:
        """Return the time that a process has had, as user and in the kernel."""
        # The second field is a name in parentheses that may hold anything.
        fields = self._text(f"{pid}/stat").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]) if len(fields) > 12 else None

    def _resident_pages(self, pid: int) -> int | None:
        fields = self._text(f"{pid}/statm").split()
        return int(fields[1]) if len(fields) > 1 else None

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(errors="replace")
        except OSError:
            return ""
