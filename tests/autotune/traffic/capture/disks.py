"""Files on a disk that becomes full and empty again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from autotune.traffic.capture.part import Appending, open_part


class FullDisk:
    """Opens files.

    Attributes:
        room_bytes: what may still be written, None for no limit.
    """

    def __init__(self, *, can_truncate: bool = True) -> None:
        self.room_bytes: int | None = None
        self.can_truncate = can_truncate

    def opened(self, path: Path) -> Appending:
        return _File(self, open_part(path))


class _File:
    def __init__(self, disk: FullDisk, file: Appending) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: bytes, /) -> int | None:
        room = self._disk.room_bytes
        if room is None:
            return self._file.write(data)
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = data[:room]
        self._disk.room_bytes = room - len(written)
        return self._file.write(written)

    def truncate(self, size: int, /) -> int:
        if not self._disk.can_truncate:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.truncate(size)

    def close(self) -> None:
        self._file.close()
