"""Who else computes on our GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.hardware.gpu_memory import Holder

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's own namespace of processes (``PROC_PID_INIT_INO`` of the kernel)."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A process with memory of one of our GPUs.

    Attributes:
        gpu_uuid: which.
        pid: as the driver names it.
        name: what it calls itself; None where its pid means nothing to us.
        memory_bytes: the most that it was seen with; None where the driver does not say.
    """

    gpu_uuid: str
    pid: int
    name: str | None
    memory_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Neighbourhood:
    """Tells our own processes on GPUs from others.

    The driver may name processes as the machine does, while a container has names of its own.
    Pids are taken to be comparable if we are in no container's namespace, or if the driver has
    named one of our own.
    """

    def __init__(self, own_pids: Iterable[int], *, proc: Path = Path("/proc")) -> None:
        self._own = frozenset(own_pids)
        self._proc = proc
        self._seen: dict[tuple[str, int], Neighbour] = {}

    def look(self, holders: Mapping[str, Iterable[Holder]]) -> None:
        """Remember who holds memory of each GPU, by UUID."""
        for uuid, each in ((uuid, holder) for uuid, some in holders.items() for holder in some):
            known = self._seen.get((uuid, each.pid))
            if known is None:
                known = Neighbour(uuid, each.pid, self._name(each.pid), each.used_bytes)
            used = max(known.memory_bytes or 0, each.used_bytes or 0) or None
            self._seen[uuid, each.pid] = replace(known, memory_bytes=used)

    @property
    def pids_comparable(self) -> bool | None:
        """Whether the driver's pids are ours; None if it has named none."""
        if not self._seen:
            return None
        named = {pid for _, pid in list(self._seen)}
        return bool(named & self._own) or self._on_the_machine()

    def others(self) -> tuple[Neighbour, ...]:
        """Return who is not of us; all, and without names, where pids are not comparable."""
        comparable = self.pids_comparable
        return tuple(
            each if comparable else replace(each, name=None)
            for each in list(self._seen.values())
            if not (comparable and each.pid in self._own)
        )

    def _on_the_machine(self) -> bool:
        try:
            return (self._proc / "self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
        except OSError:
            return False

    def _name(self, pid: int) -> str | None:
        try:
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return None
