"""What trials left, in files of their own until the database has it.

A file holds one trial of one study: a line of JSON with the digest of all that follows, a line of
JSON with the columns, and the packed arrays. It is written whole under another name, brought to
the disk and then renamed, so that neither a kill nor a power cut leaves half of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from storage import codec
from storage.records import StudyRecord, TrialRecord
from storage.writing import Ending

_FORMAT: Final = "autotune-spool-1"
_SUFFIX: Final = ".spool"
_ASIDE: Final = ".aside"


@dataclass(frozen=True, slots=True)
class Spooled:
    """What a trial left, and which trial that was.

    Attributes:
        study: Name and time of creation, which together are no other study's.
        number: Of the trial.
        beginning: Columns of ``autotune_trial`` with which it was begun.
        ending: All that was measured.
        finished_at: When that was.
    """

    study: tuple[str, str]
    number: int
    beginning: Mapping[str, str | int | None]
    ending: Ending
    finished_at: str

    @classmethod
    def of(
        cls, study: StudyRecord, row: TrialRecord, ending: Ending, *, finished_at: str
    ) -> Spooled:
        """Return what the trial of this row left, as it was begun."""
        beginning = {
            "phase": row.phase,
            "fidelity": row.fidelity,
            "candidate": codec.encode(row.candidate, name="candidate"),
            "replicate_of": row.replicate_of,
            "started_at": row.started_at,
            "log_path": row.log_path,
        }
        return cls((study.name, study.created_at), row.number, beginning, ending, finished_at)

    def to_bytes(self) -> bytes:
        body = {
            "study": self.study,
            "number": self.number,
            "beginning": self.beginning,
            "columns": self.ending.columns,
            "finished_at": self.finished_at,
            "samples": [[name, len(data)] for name, data in self.ending.samples.items()],
        }
        text = codec.encode(body, name="spool").encode()
        content = b"\n".join([text, b"".join(self.ending.samples.values())])
        head = json.dumps({"format": _FORMAT, "digest": _digest(content)}).encode()
        return b"\n".join([head, content])

    @classmethod
    def from_bytes(cls, data: bytes) -> Spooled:
        """Return what ``to_bytes`` wrote.

        Raises:
            ValueError: It is not whole, or nothing of the kind.
        """
        head, _, content = data.partition(b"\n")
        if _loaded(head) != {"format": _FORMAT, "digest": _digest(content)}:
            raise ValueError("its digest is not that of its content")
        text, _, packed = content.partition(b"\n")
        body = codec.decode(text.decode())
        samples, begin = {}, 0
        for name, size in body["samples"]:
            samples[name] = packed[begin : begin + size]
            begin += size
        name, created_at = body["study"]
        return cls(
            (name, created_at),
            body["number"],
            body["beginning"],
            Ending(body["columns"], samples),
            body["finished_at"],
        )


def _loaded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Spool:
    """The files of one folder.

    Args:
        folder: Of the engine logs, for the owner alone; made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reserved = folder / "reserved.part"

    def reserve(self, size: int) -> None:
        """Take so many bytes of the disk for the next file.

        Raises:
            OSError: There is no room, or nothing can be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _opened(self._reserved) as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def release(self) -> None:
        """Give back what was reserved and not used."""
        with suppress(OSError):
            self._reserved.unlink()

    def keep(self, spooled: Spooled) -> Path:
        """Write a file and bring it to the disk; one of the same trial is replaced.

        Raises:
            OSError: It cannot be written.
        """
        path = self._folder / f"trial-{spooled.number:04d}{_SUFFIX}"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Files of two studies with one folder must not replace each other.
        if path.exists() and _study_of(path) != spooled.study:
            path = path.with_name(f"{path.stem}-{_digest(repr(spooled.study).encode())}{_SUFFIX}")
        write_durably(path, spooled.to_bytes(), part=self._reserved)
        return path

    def files(self) -> Iterator[Path]:
        """Yield the files that wait, in the order of their names."""
        yield from sorted(self._folder.glob(f"*{_SUFFIX}"))

    @staticmethod
    def read(path: Path) -> Spooled:
        """Return what a file holds.

        Raises:
            ValueError: It is not whole.
            OSError: It cannot be read.
        """
        return Spooled.from_bytes(path.read_bytes())

    @staticmethod
    def set_aside(path: Path) -> Path:
        """Rename a file that cannot be stored, and return its new path.

        Raises:
            OSError: It cannot be renamed.
        """
        return path.rename(path.with_name(path.name + _ASIDE))

    @staticmethod
    def drop(path: Path) -> None:
        """Remove a file whose content is stored; one that stays is found to be stored later."""
        with suppress(OSError):
            path.unlink()


def _study_of(path: Path) -> tuple[str, str] | None:
    try:
        return Spool.read(path).study
    except (OSError, ValueError):
        return None


def write_durably(path: Path, data: bytes, *, part: Path) -> None:
    """Write a file whole or not at all, for its owner alone, and bring it to the disk.

    Args:
        path: Of the file.
        data: Its content.
        part: In the same folder, what is written and then renamed; it may be there already.

    Raises:
        OSError: It cannot be written; what was at its path is still there.
    """
    with _opened(part) as file:
        file.write(data)
        # What was reserved beyond.
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def _opened(path: Path) -> BinaryIO:
    """Open a file to write it from its beginning; what it holds is still there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk.

    Raises:
        OSError: The folder is gone, or its disk fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
