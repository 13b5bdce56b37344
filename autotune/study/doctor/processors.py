"""Processors and memory: what there is, what this process may have of it, and who uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.study.doctor.results import Result

LEAST_SHM_BYTES = 2**30
"""vLLM's processes speak through shared memory; containers have 64 MiB of it by default."""

LEAST_MEMORY_BYTES = 8 * 2**30

_BUSY_FROM = 0.5
"""Load per processor from which replays run beside too much else."""
_FEW = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """Processors and memory; None where nothing says.

    Attributes:
        cores: of the machine.
        allowed: that this process may run on.
        quota_cores: that its control group may use at a time, None without a limit.
        load: the mean number of processes that ran or waited in the last minute.
        available_bytes: memory that could be had without swapping.
        limit_bytes: of its control group, None without a limit.
        shm_free_bytes: of /dev/shm.
    """

    cores: int
    allowed: int
    quota_cores: float | None
    load: float | None
    available_bytes: int | None
    limit_bytes: int | None
    shm_free_bytes: int | None


def gather_machine(root: Path = Path("/")) -> Machine:
    """Read processors and memory from ``/proc``, ``/sys`` and ``/dev/shm`` below a root."""
    groups = list(_control_groups(root))
    return Machine(
        cores=os.cpu_count() or 1,
        allowed=len(os.sched_getaffinity(0)),
        quota_cores=min((q for g in groups if (q := _quota(g)) is not None), default=None),
        load=_first_number(root / "proc/loadavg"),
        available_bytes=_available(root / "proc/meminfo"),
        limit_bytes=min((m for g in groups if (m := _memory(g)) is not None), default=None),
        shm_free_bytes=_free_bytes(root / "dev/shm"),
    )


def machine_results(machine: Machine) -> Iterator[Result]:
    """Judge processors, load, memory and shared memory."""
    yield _cpu(machine)
    if machine.load is not None:
        yield _load(machine, machine.load)
    yield _memory_result(machine)
    yield _shm(machine.shm_free_bytes)


def usable_cores(machine: Machine) -> float:
    """Return how many processors this process can keep busy."""
    return min(machine.allowed, machine.quota_cores or machine.allowed)


def _cpu(machine: Machine) -> Result:
    words = f"{machine.allowed} of {machine.cores} processors"
    if machine.quota_cores is not None:
        words = f"{words}, a quota of {machine.quota_cores:g}"
    if usable_cores(machine) < _FEW:
        hint = "an engine core, its workers and the client want one each, or replays are sent late"
        return Result("cpu", "warn", words, hint)
    return Result("cpu", "ok", words)


def _load(machine: Machine, load: float) -> Result:
    words = f"{load:.1f} in the last minute"
    if load > _BUSY_FROM * machine.cores:
        hint = "let nothing else run: what is measured beside other work does not count"
        return Result("load", "warn", words, hint)
    return Result("load", "ok", words)


def _memory_result(machine: Machine) -> Result:
    if machine.available_bytes is None:
        return Result("memory", "warn", "how much is free is unknown", "mount /proc")
    limit = machine.limit_bytes
    words = f"{_gib(machine.available_bytes)} available"
    least = machine.available_bytes
    if limit is not None:
        words, least = f"{words}, a limit of {_gib(limit)}", min(least, limit)
    if least < LEAST_MEMORY_BYTES:
        hint = f"engines want {_gib(LEAST_MEMORY_BYTES)} and what the weights take while loading"
        return Result("memory", "warn", words, hint)
    return Result("memory", "ok", words)


def _shm(free_bytes: int | None) -> Result:
    if free_bytes is None:
        hint = "mount it: vLLM's processes speak through it"
        return Result("shm", "fail", "there is no /dev/shm", hint)
    words = f"{_gib(free_bytes)} free in /dev/shm"
    if free_bytes < LEAST_SHM_BYTES:
        hint = (
            "a container wants --shm-size or --ipc=host, Kubernetes an emptyDir of medium Memory"
        )
        return Result("shm", "warn", words, hint)
    return Result("shm", "ok", words)


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control group and of those that it lies in."""
    mount = root / "sys/fs/cgroup"
    own = ""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        if number == "0":
            own = rest.partition(":")[2].strip("/")
    # ``..`` is seen from within a namespace that begins below.
    inside = Path() if own.startswith("..") else Path(own)
    for folder in (inside, *inside.parents) if own else (Path(),):
        yield mount / folder
    # Version 1 has a hierarchy for each controller.
    yield from (mount / "cpu", mount / "memory")


def _quota(group: Path) -> float | None:
    text = " ".join(_lines(group / "cpu.max"))
    if not text:
        parts = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        text = " ".join(line for part in parts for line in _lines(group / part))
    limit, _, period = text.partition(" ")
    if not limit.isdigit() or not period.isdigit() or not int(period):
        return None
    return int(limit) / int(period)


def _memory(group: Path) -> int | None:
    text = "".join(_lines(group / "memory.max") or _lines(group / "memory.limit_in_bytes"))
    # Version 1 writes the largest number that there is for no limit.
    return int(text) if text.isdigit() and int(text) < 2**60 else None


def _available(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _first_number(path: Path) -> float | None:
    lines = _lines(path)
    return float(lines[0].split()[0]) if lines else None


def _free_bytes(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
