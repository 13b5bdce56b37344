"""Folders that are written to: room, inodes, permissions, and file systems over a network."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.study.doctor.results import Result

LEAST_FREE_BYTES = 2**30
"""A night of trials writes some tens of MB to the database and as much to logs."""

LOW_FREE_BYTES = 5 * 2**30
LEAST_INODES = 1000

NETWORK = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
        "gpfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "wekafs",
    )
)  # fmt: skip
"""File systems on which SQLite's locks and write-ahead log are not to be relied on."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, or where it does not exist yet the one that it would be made in.

    Attributes:
        folder: as it was asked for.
        free_bytes: that this user may still write; None where it cannot be looked at.
        free_inodes: files that may still be made; None where the file system counts none.
        filesystem: its type, None where it is unknown.
        fault: why no file can be made in it, None where one was made and removed.
    """

    folder: Path
    free_bytes: int | None
    free_inodes: int | None
    filesystem: str | None
    fault: str | None


def gather_place(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Place:
    """Look at a folder, and try to write a file there; none is left."""
    at = _existing(folder)
    try:
        found = os.statvfs(at)
    except OSError as error:
        return Place(folder, None, None, None, error.strerror)
    return Place(
        folder=folder,
        free_bytes=found.f_bavail * found.f_frsize,
        free_inodes=found.f_favail if found.f_files else None,
        filesystem=_filesystem(at, mounts),
        fault=_write_fault(at),
    )


def place_results(
    name: str, place: Place, *, of_database: bool = False, needed: bool = True
) -> Iterator[Result]:
    """Judge one folder.

    Args:
        name: what it is for.
        place: as it was found.
        of_database: whether SQLite works in it.
        needed: whether a study writes there for certain; nothing fails for another.
    """
    for found in _judged(name, place, of_database):
        yield found if needed or found.state == "ok" else replace(found, state="warn")


def _judged(name: str, place: Place, of_database: bool) -> Iterator[Result]:
    where = f"{place.folder}"
    if place.fault is not None:
        hint = "choose another folder, or make this one writable"
        yield Result(name, "fail", f"{where} cannot be written: {place.fault}", hint)
        return
    free = place.free_bytes or 0
    inodes = "" if place.free_inodes is None else f", {place.free_inodes} inodes"
    words = f"{where}: {free / 2**30:.1f} GiB free{inodes}"
    kind = place.filesystem or "an unknown file system"
    if place.free_inodes is not None and place.free_inodes < LEAST_INODES:
        yield Result(name, "fail", words, "remove small files: no more can be made")
    elif free < LEAST_FREE_BYTES:
        hint = f"free some: a night wants {LEAST_FREE_BYTES / 2**30:.0f} GiB and more"
        yield Result(name, "fail", words, hint)
    elif of_database and place.filesystem in NETWORK:
        hint = "keep SQLite on a disk of this machine, or use PostgreSQL"
        yield Result(name, "warn", f"{words}, over a network ({kind})", hint)
    elif free < LOW_FREE_BYTES:
        yield Result(name, "warn", words, "free some before a long study")
    else:
        yield Result(name, "ok", f"{words} ({kind})")


def _existing(folder: Path) -> Path:
    at = Path(os.path.realpath(folder))
    while not at.exists() and at != at.parent:
        at = at.parent
    return at


def _write_fault(folder: Path) -> str | None:
    """Make a file with a few bytes on the disk, and remove it."""
    if not folder.is_dir():
        return os.strerror(errno.ENOTDIR)
    path = None
    try:
        descriptor, path = tempfile.mkstemp(prefix=".autotune-doctor-", dir=folder)
        try:
            os.write(descriptor, b"doctor")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.strerror
    finally:
        if path is not None:
            with suppress(OSError):
                Path(path).unlink()
    return None


def _filesystem(folder: Path, mounts: Path) -> str | None:
    """Return the type of the mount with the longest path above a folder."""
    best, kind = -1, None
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 5 or not types:
            continue
        # Spaces in names are written in octal.
        mount = Path(fields[4].replace("\\040", " "))
        if folder.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), types[0]
    return kind
