"""Who works here already: leases that are held, and what killed runs have left."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import select

from autotune.engine.run_folder import PREFIX, RUNS, RunFolder
from autotune.lease import device_lock, study_lock
from autotune.study.doctor.results import Result
from storage.database import open_database
from storage.errors import StorageError
from storage.faults import translated_errors
from storage.leases import study_resource
from storage.owner import Owner
from storage.schema import lease

_MOST_BYTES = 4096
_LOCK_FIELDS = 6


def lease_results(
    url: str,
    names: Iterable[str],
    device_uuids: Iterable[str],
    *,
    locks: Path = Path("/proc/locks"),
) -> Iterator[Result]:
    """Say which studies and GPUs are in use, and by whom; no lock is taken to find out.

    Args:
        url: of the database.
        names: of the studies that may be held.
        device_uuids: of the GPUs that may be.
        locks: the kernel's list of locks.
    """
    held = _locked_inodes(locks)
    if held is None:
        hint = "mount /proc; autotune tune says who holds a lease where one is held"
        yield Result("leases", "warn", "who holds which is unknown", hint)
        return
    wanted = [(f"study {name!r}", study_lock(url, name)) for name in names]
    wanted += [(f"GPU {uuid}", device_lock(uuid)) for uuid in device_uuids]
    found = [(what, path) for what, path in wanted if _inode(path) in held]
    for what, path in found:
        hint = "another autotune ends with exit code 75 meanwhile: wait until it ends, or end it"
        yield Result("leases", "warn", f"{what} is in use by {_owner(path)}", hint)
    rows = list(_row_results(url))
    yield from rows
    if not found and not rows:
        yield Result("leases", "ok", "none is held")


def _row_results(url: str) -> Iterator[Result]:
    """Say who has leased a study in the database, from whatever machine."""
    try:
        rows = leases_in(url)
    except StorageError:
        # What is wrong with the database is said elsewhere.
        return
    for resource, owner, since in rows:
        words = f"{resource} is leased by process {owner.pid} on {owner.host} since {since}"
        if owner.is_gone:
            yield Result("leases", "ok", f"{words}, which is gone: the next one takes it over")
        else:
            hint = "it expires a minute after its owner's last sign of life"
            yield Result("leases", "warn", words, hint)


def is_worked_on(url: str, name: str) -> bool:
    """Whether a process holds the lease of a study, or may: one of another machine is believed.

    Raises:
        StorageError: as ``leases_in`` does.
    """
    own = study_resource(name)
    return any(resource == own and not owner.is_gone for resource, owner, _ in leases_in(url))


def leases_in(url: str) -> list[tuple[str, Owner, str]]:
    """Return what is leased in a database, each with its owner and since when.

    Raises:
        StorageError: the database cannot be read, or holds no tables of ours.
    """
    engine = open_database(url, create=False)
    try:
        with translated_errors(url), engine.connect() as connection:
            rows = connection.execute(select(lease).order_by(lease.c.resource)).all()
    finally:
        engine.dispose()
    return [
        (
            row.resource,
            Owner(row.owner, row.host, row.machine, row.pid, row.started_ticks),
            row.since,
        )
        for row in rows
    ]


def leftover_results(parent: Path = RUNS) -> Iterator[Result]:
    """Tell what runs have left whose controller is no more; nothing is ended here."""
    abandoned = running = 0
    for path in sorted(parent.glob(f"{PREFIX}*")):
        if not _is_ours(path):
            continue
        folder = RunFolder.found(path)
        if not folder.abandoned:
            running += 1
            continue
        abandoned += 1
        yield _left(folder)
    if not abandoned:
        words = "nothing is left of killed runs"
        active = (
            f"; {running} {'run is' if running == 1 else 'runs are'} active" if running else ""
        )
        yield Result("leftovers", "ok", f"{words}{active}")


def _left(folder: RunFolder) -> Result:
    processes, segments = sorted(folder.running()), folder.shared_memory()
    named = ", ".join(f"{each.name} (pid {each.pid})" for each in processes) or "no process"
    return Result(
        "leftovers",
        "warn",
        f"a killed run has left {named} and {len(segments)} segments of shared memory in "
        f"{folder.path}",
        "the next autotune tune of this user ends and removes them",
    )


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink()
    except OSError:
        return False


def _locked_inodes(locks: Path) -> frozenset[int] | None:
    """Return the inodes that are locked as leases are; the devices vary with the file system."""
    try:
        lines = locks.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = set()
    for fields in map(str.split, lines):
        # "1: FLOCK ADVISORY WRITE 4711 08:01:131090 0 EOF"; "->" stands before who waits.
        if len(fields) >= _LOCK_FIELDS and fields[1] == "FLOCK" and fields[3] == "WRITE":
            inode = fields[5].rpartition(":")[2]
            if inode.isdigit():
                found.add(int(inode))
    return frozenset(found)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _owner(path: Path) -> str:
    """Return whom a lease names, as the one who is refused it is told."""
    try:
        with path.open("rb") as file:
            owner = json.loads(file.read(_MOST_BYTES))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
