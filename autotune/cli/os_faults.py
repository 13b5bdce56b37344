"""What the operating system refuses and nobody has put into words before."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
_STREAMS = {1: "standard output", 2: "standard error"}
_FULL_DEVICE = "/dev/full"
_PROCESS_HINT = "end other processes, or raise the limit that `ulimit -u` shows"
_DEFAULT_HINT = "`autotune --debug COMMAND` shows where it happened"
_HINTS = {
    errno.EACCES: "name a place that you may use, or run as its owner",
    errno.EAGAIN: _PROCESS_HINT,
    errno.EDQUOT: "make room within your quota, or write elsewhere",
    errno.EIO: "look whether the disk or the terminal is still there",
    errno.EMFILE: "raise the limit that `ulimit -n` shows",
    errno.ENFILE: "close other programs: the whole machine has too many files open",
    errno.ENOMEM: "end other programs, or give the job more memory",
    errno.ENOSPC: "make room, or write elsewhere",
    errno.EROFS: "name a place that you may write",
}


class Words(NamedTuple):
    """The message and the hint of an error."""

    message: str
    hint: str


def words_of(error: OSError) -> Words:
    """Say what could not be done, and what helps."""
    code = error.errno or 0
    reason, hint = error.strerror or str(error), _HINTS.get(code, _DEFAULT_HINT)
    if error.filename is not None:
        return Words(f"{os.fsdecode(error.filename)}: {reason}", hint)
    if code == errno.ENOENT and _folder_is_gone():
        return Words(
            "the current folder has been removed", "change to a folder that exists, and try again"
        )
    if isinstance(error, BlockingIOError) and hasattr(error, "characters_written"):
        return Words(f"output: {reason}", "send it to a file, or to a pipe that waits for readers")
    if code == errno.EAGAIN:
        return Words(f"no further process can be started: {reason}", hint)
    if code in _OUTPUT:
        return Words(f"{_written_to(code)}: {reason}", hint)
    return Words(f"the operating system refused: {reason}", hint)


def _written_to(code: int) -> str:
    """Return which file or folder a write without a name has most likely gone to, as far as known.

    What is redirected is the likeliest, then what lies on a disk without room.
    """
    no_room = code in {errno.ENOSPC, errno.EDQUOT}
    for number, name in _STREAMS.items():
        path = _file_of(number)
        if path is not None and (not no_room or _is_full(path)):
            return f"{name} ({path})"
    if no_room:
        for path in map(str, _places()):
            if _is_full(path):
                return f"the disk of the folder {path}"
    return "output"


def _file_of(number: int) -> str | None:
    """Return what a stream is redirected to, None if that is a terminal, a pipe or closed."""
    try:
        path = Path(f"/proc/self/fd/{number}").readlink()
        return None if os.isatty(number) or not path.exists() else str(path)
    except OSError:
        return None


def _places() -> list[Path]:
    """Return where files are kept that nobody has named: here, or as temporary ones."""
    try:
        return [Path.cwd(), Path(tempfile.gettempdir())]
    except OSError:
        return []


def _is_full(path: str) -> bool:
    try:
        return path == _FULL_DEVICE or os.statvfs(path).f_bavail == 0
    except OSError:
        return False


def _folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
