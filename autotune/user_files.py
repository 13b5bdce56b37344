"""Files that a user names: read whole, or written when all is done."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from autotune.errors import UsageError

MAX_BYTES = 16 * 2**20
"""More than any settings, description or configuration of a model has."""

_ELSEWHERE = "name a file in a folder that you may write"


def read_small(path: Path) -> str:
    """Return the text of a file that has no reason to be large.

    Raises:
        OSError: see ``read_small_bytes``.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_small_bytes(path).decode("utf-8")


def read_small_bytes(path: Path) -> bytes:
    """Return the content of a file that has no reason to be large.

    Raises:
        OSError: it cannot be read, is a pipe, a device or the like, which may have no end, or has
            more than ``MAX_BYTES``.
    """
    # Opening a pipe would wait for who writes it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {MAX_BYTES // 2**20} MiB", str(path))
    return content


def check_destination(path: Path) -> Path:
    """Return where a result that is named ``path`` goes, with symbolic links followed.

    To be called before the work that makes the result.

    Raises:
        UsageError: there is no folder for it, it may not be written, or something that is no
            regular file is there.
    """
    resolved = Path(os.path.realpath(path))
    try:
        mode = resolved.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        folder = resolved.parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            raise UsageError(
                f"{path}: cannot be written: there is no folder {folder}",
                hint=f"make it first, or {_ELSEWHERE}",
            ) from None
        place = folder
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", hint=_ELSEWHERE
        ) from error
    else:
        # What is still a link after resolving is a link to itself.
        if not stat.S_ISREG(mode):
            raise UsageError(f"{path}: is no regular file", hint="name a file, or a new one")
        place = resolved
    if not os.access(place, os.W_OK):
        raise UsageError(f"{path}: cannot be written: Permission denied", hint=_ELSEWHERE)
    return resolved
