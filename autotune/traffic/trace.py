"""Traces as files: JSON Lines with a description beside them.

A trace ``a.jsonl`` has its description in ``a.meta.json``; no other suffix is written, since two
traces would then share a description. A trace that somebody else wrote needs none: see
``autotune.traffic.formats``.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import EnvironmentFault, TraceError, UsageError
from autotune.traffic.formats import detect, reader_named
from autotune.traffic.formats.base import NO_OPTIONS, ReadOptions
from autotune.traffic.formats.native import SUFFIX, meta_path
from autotune.traffic.model import Trace
from autotune.user_files import check_destination

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def load_trace(
    path: Path,
    *,
    format: str = "auto",  # noqa: A002
    options: ReadOptions = NO_OPTIONS,
) -> Trace:
    """Read a trace file of any known format.

    Args:
        path: the file.
        format: name of a reader, or ``auto`` to tell it from the first lines.
        options: what some forms leave open.

    Raises:
        TraceError: the file is no trace; the message names file, line and reason.
        UsageError: there is no such format, it lacks an option or has no use for one.
    """
    reader = detect(path) if format == "auto" else reader_named(format)
    return reader.read_with(path, options)


def check_trace_destination(path: Path) -> tuple[Path, Path]:
    """Return where a trace and its description are written, with symbolic links followed.

    To be called before the work that makes the trace.

    Raises:
        TraceError: the name does not end in ``.jsonl``, one of the two may not be written, or is
            there and is no regular file.
    """
    try:
        lines_at = check_destination(path)
        if lines_at.suffix != SUFFIX:
            raise TraceError(
                f"{path}: no name for a trace, as it does not end in {SUFFIX}",
                hint=f"write to {path.name}{SUFFIX}",
            )
        return lines_at, check_destination(meta_path(lines_at))
    except UsageError as error:
        raise TraceError(error.message, hint=error.hint) from error


def save_trace(trace: Trace, path: Path) -> None:
    """Write ``path`` and its description, each at once and readable by the owner alone.

    A crash between the two leaves a description of other traffic, which reading notices.
    Where ``path`` is a symbolic link, it stays one and its target is written, with the
    description beside the target.

    Raises:
        TraceError: they cannot be written; see ``check_trace_destination``.
        EnvironmentFault: the disk is full or broken.
    """
    meta = json.dumps(trace.meta.to_json(), indent=2) + "\n"
    lines_at, meta_at = check_trace_destination(path)
    try:
        _write_at_once(lines_at, trace.lines())
        _write_at_once(meta_at, [meta.encode()])
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror or error}"
        if error.errno in _DISK_FAULTS:
            raise EnvironmentFault(
                message, hint="what was there is as it was; make room, or write elsewhere"
            ) from error
        raise TraceError(message, hint="name a file in a folder that you may write") from error


def _write_at_once(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace ``path`` by a file of mode 0600 that is complete and on the disk."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name in ``folder`` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
