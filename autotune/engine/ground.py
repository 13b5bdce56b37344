"""Clean ground: before an engine starts, its predecessor has to have given everything back.

What is left of an engine changes the next measurement: memory that is still held makes the KV
cache smaller or the start fail, a process that still runs takes the GPU's time, and a host that
leaks is slower at the end of a night than at its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.engine.failures import lacks_memory
from autotune.engine.processes import Process
from autotune.engine.protocol import Failure
from autotune.engine.run_folder import RunFolder
from autotune.hardware.gpu_memory import GpuMemory, Holder

TOLERANCE = 0.05
"""Memory is back at its baseline when it is within this share of it."""

FLOOR_BYTES = 64 * 2**20
"""Below this a difference is the driver's or the allocator's, whatever its share."""

FLOOR_DESCRIPTORS = 16

_POLL_S = 0.5
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Ground:
    """What a run holds while it has no engine.

    Attributes:
        processes: how many run beside the host and its resource tracker.
        host_memory_bytes: of the host's own memory.
        host_descriptors: files and sockets that the host has open.
        shared_memory_bytes: of the segments that engines of this run have made.
        sockets: socket files of the run.
        gpu_memory_bytes: in use on each GPU of the engines, by whomever.
        waited_s: until it was found clean.
        host_replaced: why the host was ended to get there, None if it was not.
    """

    processes: int
    host_memory_bytes: int
    host_descriptors: int
    shared_memory_bytes: int
    sockets: int
    gpu_memory_bytes: Mapping[str, int]
    waited_s: float = 0.0
    host_replaced: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class NotClean(Exception):
    """Something is left; the text says what, and who holds it."""


class GroundCheck:
    """Compares what is held before a start with what was held before.

    A GPU's baseline is what was in use before the run's first engine on it, once that no longer
    falls: an earlier run may have ended a moment ago. The host's own is what it held after its
    first engine, because the first start imports modules that stay.
    """

    def __init__(self, settle_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle_s = settle_s
        self._clock = clock
        self._gpu_base: dict[str, int] = {}
        self._host_base: Ground | None = None
        self._host: Process | None = None
        self._starts = 0
        self._neighbours: tuple[Holder, ...] = ()

    def before_start(self, host: Process, folder: RunFolder, gpu: GpuMemory) -> Ground:
        """Wait until the ground is clean, and return what is held then.

        Raises:
            NotClean: something is left after ``settle_s`` seconds.
        """
        begun = self._clock()
        now = None
        while True:
            folder.remove_stale_sockets()
            before, now = now, survey(host, folder, gpu)
            left = self._left(host, now) or self._falling(before, now)
            waited_s = self._clock() - begun
            if left is None:
                break
            if waited_s >= self._settle_s:
                raise NotClean(f"{left} after {waited_s:.0f} s{_named(host, folder, gpu)}")
            time.sleep(_POLL_S)
        self._remember(host, now)
        self._neighbours = tuple(gpu.holders())
        return replace(now, waited_s=waited_s)

    def blamed(self, failure: Failure, gpu: GpuMemory) -> Failure:
        """Return why an engine that is gone really failed, if it was for want of memory.

        What others take meanwhile is no fault of the candidate, and makes the failure one that
        may be repeated. What they held from the beginning is only named: the candidate may ask
        for too much beside them, and would again.
        """
        if not lacks_memory(failure):
            return failure
        taken = self._kept_by_others(gpu)
        if taken is not None:
            return Failure("unknown", f"{taken}; so the engine said: {failure.evidence}")
        if not self._neighbours:
            return failure
        beside = f"not ours is {_listed(self._neighbours)}"
        return replace(failure, evidence=f"{failure.evidence} ({beside})")

    def _kept_by_others(self, gpu: GpuMemory) -> str | None:
        """Wait until a GPU has what the last engine held back; say what is missing then."""
        begun = self._clock()
        while (left := self._missing(gpu.used_bytes())) is not None:
            if self._clock() - begun >= self._settle_s:
                named = _listed(gpu.holders())
                return f"{left} without an engine{': ' + named if named else ''}"
            time.sleep(_POLL_S)
        return None

    def _missing(self, used_bytes: Mapping[str, int]) -> str | None:
        """Say which GPU has more in use than before the first engine, None if none has."""
        for uuid, base in self._gpu_base.items():
            used = used_bytes.get(uuid, 0)
            if used > base + max(TOLERANCE * base, FLOOR_BYTES):
                return f"{uuid} has {_gib(used)} in use, {_gib(base)} before the first engine,"
        return None

    def _remember(self, host: Process, now: Ground) -> None:
        self._gpu_base = {**now.gpu_memory_bytes, **self._gpu_base}
        self._starts = self._starts + 1 if host == self._host else 1
        self._host = host
        if self._starts == 1:
            self._host_base = None
        elif self._starts == 2:
            self._host_base = now

    def _left(self, host: Process, now: Ground) -> str | None:
        """Say what is more than it was, None if nothing is."""
        if now.processes:
            return f"{now.processes} processes of the last engine still run"
        if now.shared_memory_bytes or now.sockets:
            return (
                f"{_gib(now.shared_memory_bytes)} of shared memory and {now.sockets} sockets of "
                "the last engine are left"
            )
        if (missing := self._missing(now.gpu_memory_bytes)) is not None:
            return missing
        base_host = self._host_base if host == self._host else None
        if base_host is not None:
            return _host_leak(now, base_host)
        return None

    def _falling(self, before: Ground | None, now: Ground) -> str | None:
        """Say which GPU without a baseline may still be given memory back, None if none is."""
        for uuid, used in now.gpu_memory_bytes.items():
            if uuid in self._gpu_base:
                continue
            if before is None or used < before.gpu_memory_bytes.get(uuid, 0) - FLOOR_BYTES:
                return f"{uuid} is still being given memory back"
        return None


def survey(host: Process, folder: RunFolder, gpu: GpuMemory) -> Ground:
    """Return what is held now."""
    return Ground(
        processes=len(_engine_processes(host, folder)),
        host_memory_bytes=host.memory_bytes,
        host_descriptors=host.descriptors,
        shared_memory_bytes=sum(map(_size_bytes, folder.shared_memory())),
        sockets=len(folder.sockets()),
        gpu_memory_bytes=gpu.used_bytes(),
    )


def _size_bytes(path: Path) -> int:
    """Return the size of a file, 0 if it has been unlinked since it was seen."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _engine_processes(host: Process, folder: RunFolder) -> list[Process]:
    """Return what runs beside the host and its resource tracker, which lives as long."""
    return [
        each
        for each in folder.running()
        if each != host and not (each.deaf and each.parent == host.pid)
    ]


def _host_leak(now: Ground, base: Ground) -> str | None:
    grown = now.host_memory_bytes - base.host_memory_bytes
    if grown > max(TOLERANCE * base.host_memory_bytes, FLOOR_BYTES):
        before, after = _gib(base.host_memory_bytes), _gib(now.host_memory_bytes)
        return f"the host has grown from {before} to {after}"
    more = now.host_descriptors - base.host_descriptors
    if more > max(TOLERANCE * base.host_descriptors, FLOOR_DESCRIPTORS):
        return f"the host has {now.host_descriptors} descriptors, {base.host_descriptors} before"
    return None


def _named(host: Process, folder: RunFolder, gpu: GpuMemory) -> str:
    """Name who holds something, so that it can be ended."""
    engines = [f"process {each.pid} ({each.name})" for each in _engine_processes(host, folder)]
    ours = {each.pid for each in folder.running()}
    others = _listed([each for each in gpu.holders() if each.pid not in ours])
    named = ", ".join(filter(None, [*engines, others]))
    return f": {named}" if named else ""


def _listed(holders: Sequence[Holder]) -> str:
    """Return holders as a sentence lists them, '' for none; pids are as the driver has them."""
    return ", ".join(
        f"process {each.pid}{'' if each.used_bytes is None else ' with ' + _gib(each.used_bytes)}"
        for each in holders
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB"
