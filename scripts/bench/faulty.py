"""A study under faults, in a folder and a database of its own, and whether it has survived them.

Every process of a study has a mark of its own in its environment, by which whatever it has left
behind is found, whoever its parent is. What was measured is known from a journal that the child
keeps, not from the database that may be at fault.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import yaml

from autotune.engine.run_folder import PREFIX, RUNS
from autotune.study.plan import finished_trials
from storage.errors import StorageError
from storage.integrity import integrity
from storage.records import TrialRecord
from storage.repository import open_repository

NAME = "night"
MARK = "AUTOTUNE_FAULT_MARK"
TRIALS = 5
GONE_WITHIN_S = 30.0
RUN_WITHIN_S = 300.0
ENDED_WELL = (0, 3)
STORED = ("complete", "infeasible", "failed", "invalid")
SIMULATED: dict[str, Any] = {
    "model": "demo:tiny-llama",
    "engine": "sim:h200-llama8b",
    "trace": "demo:mixed",
    "window": "0:5",
    "fidelity": "restart",
    "calibrate": False,
    "knobs": {"max_num_batched_tokens": [512, 2048, 8192], "max_num_seqs": [16, 64, 256]},
    "lease_heartbeat_s": 0.5,
    "lease_expiry_s": 4.0,
}
REAL: dict[str, Any] = {
    "model": "demo:tiny-llama",
    "trace": "demo:mixed",
    "window": "0:5",
    "warmup_s": 1.0,
    "fidelity": "restart",
    "calibrate": False,
    "silence_timeout_s": 10.0,
    "engine_args": {
        "load_format": "dummy",
        "enforce_eager": True,
        "max_model_len": 8192,
        "kv_cache_memory_bytes": 64 * 2**20,
    },
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, what it said, and the seconds that it took."""

    code: int
    output: str
    errors: str
    seconds: float

    def line(self, *words: str) -> str:
        """Return the first line of stderr that has one of these words, '' if none does."""
        found = (line for line in self.errors.splitlines() if any(word in line for word in words))
        return next(found, "").strip()


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a fault: the code that the run ended with, and the words that say it."""

    code: int | None
    words: str
    seconds: float
    problems: Sequence[str] = ()


@dataclass(slots=True, eq=False)
class Run:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    errors: Path
    output: Path
    says: IO[bytes]
    hears: int
    begun_s: float = field(default_factory=time.monotonic)

    def reach(self, phase: str = "held") -> bool:
        """Wait until a phase begins, or it holds; False if it has ended before."""
        return any(line.strip() == phase.encode() for line in self.says)

    def drain(self) -> None:
        """Take note of no further phases."""
        for _ in self.says:
            pass

    def go(self) -> None:
        """Let it go on from where it holds."""
        os.write(self.hears, b"g")

    def end(self, *, within_s: float = RUN_WITHIN_S) -> Ended:
        """Wait until it has ended."""
        # Whatever holds from now on goes on.
        with suppress(OSError):
            os.close(self.hears)
        self.drain()
        code = self.process.wait(within_s)
        self.says.close()
        text = self.errors.read_text("utf-8", "replace")
        output = self.output.read_text("utf-8", "replace")
        return Ended(code, output, text, round(time.monotonic() - self.begun_s, 2))


class Study:
    """One study, which faults are injected into.

    Args:
        folder: its own, where its output and the journal go.
        url: of its database; None for a file.
        settings: of ``autotune.yaml``, without database and name.
        trials: how many it is to have in the end.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None,
        settings: Mapping[str, Any] = SIMULATED,
        *,
        trials: int = TRIALS,
    ) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.url = url or f"sqlite:///{self.disk / 'autotune.db'}"
        self.trials = trials
        self.logs = self.disk / "autotune-logs"
        self.settings = {
            **settings,
            "study_name": NAME,
            "storage": self.url,
            "log_folder": str(self.logs),
            "trials": trials,
        }
        self.journal = folder / "journal"
        self._mark = uuid.uuid4().hex
        self._runs = 0
        self._controllers: set[int] = set()
        self.disk.mkdir(parents=True, exist_ok=True)

    @property
    def file(self) -> Path:
        """Of an SQLite database."""
        return Path(self.url.removeprefix("sqlite:///"))

    @property
    def sqlite(self) -> bool:
        return self.url.startswith("sqlite:")

    def begin(
        self,
        *,
        hold: str = "",
        child: Sequence[str] = (),
        within: Sequence[str] = (),
        **changes: Any,
    ) -> Run:
        """Start ``autotune tune``; ``child`` are options of phases.py, ``within`` starts it."""
        # JSON is YAML, and lists stay lists.
        config = self.folder / "autotune.yaml"
        config.write_text(yaml.safe_dump({**self.settings, **changes}), encoding="utf-8")
        says, says_end = os.pipe()
        hears, hears_end = os.pipe()
        command = [*within, sys.executable, str(Path(__file__).with_name("phases.py"))]
        command += [f"--says={says_end}", f"--hears={hears}", f"--hold={hold}"]
        command += [f"--journal={self.journal}", *child, "--", "tune", "--config", str(config)]
        process, output, errors = self._started(command, (says_end, hears))
        os.close(says_end)
        os.close(hears)
        return Run(process, errors, output, os.fdopen(says, "rb"), hears_end)

    def run(self, *, child: Sequence[str] = (), **changes: Any) -> Ended:
        """Run ``autotune tune`` to its end."""
        begun = self.begin(child=child, **changes)
        begun.drain()
        return begun.end()

    def command(self, *words: str) -> Ended:
        """Run another command on the same database."""
        begun_s = time.monotonic()
        command = [sys.executable, "-m", "autotune", *words]
        process, output, errors = self._started(command, ())
        code = process.wait(RUN_WITHIN_S)
        took_s = round(time.monotonic() - begun_s, 2)
        return Ended(code, output.read_text("utf-8"), errors.read_text("utf-8"), took_s)

    def _started(
        self, command: Sequence[str], pass_fds: Sequence[int]
    ) -> tuple[subprocess.Popen[bytes], Path, Path]:
        self._runs += 1
        output = self.folder / f"run-{self._runs}.out"
        errors = self.folder / f"run-{self._runs}.err"
        environ = {**os.environ, MARK: self._mark, "HF_HUB_OFFLINE": "1"}
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdout=out, stderr=err, pass_fds=pass_fds
            )
        self._controllers.add(process.pid)
        return process, output, errors

    def processes(self) -> Iterator[psutil.Process]:
        """Yield what runs of it, whatever parent it has."""
        for each in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if each.environ().get(MARK) == self._mark:
                    yield each

    def rows(self) -> tuple[TrialRecord, ...]:
        """Return its trials; none where there is no such study yet, or no database."""
        try:
            with open_repository(self.url, create=False) as repository:
                return repository.trials(repository.study(NAME).id)
        except StorageError:
            return ()

    # What must hold.

    def measured_twice(self) -> list[int]:
        """Return which trials were measured again although what they measured was safe."""
        if not self.journal.exists():
            return []
        lines = {tuple(line.split()[1:]) for line in self.journal.read_text("ascii").splitlines()}
        return [number for number, count in Counter(int(n) for n, _ in lines).items() if count > 1]

    def measured(self) -> dict[int, str]:
        """Return when each trial was measured that is safe, by its number."""
        if not self.journal.exists():
            return {}
        lines = map(str.split, self.journal.read_text("ascii").splitlines())
        return {int(number): finished_at for _, number, finished_at in lines}

    def lost(self) -> list[int]:
        """Return which of those are not stored as they were measured."""
        stored = {row.number: row.finished_at for row in self.rows() if row.state in STORED}
        return [each for each, at in self.measured().items() if stored.get(each) != at]

    def unsound(self) -> list[str]:
        """Say what is wrong with the database; one that does not exist yet has no faults."""
        if not self.rows():
            return []
        return list(integrity(self.url).faults)

    def orphans(self) -> list[str]:
        """Say what still runs, or lies about, a while after the controller has ended."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while True:
            left = list(self.processes())
            folders = [path for pid in self._controllers for path in folders_of(pid)]
            if not (left or folders) or time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        found = [f"{path} is left" for path in folders]
        for each in left:
            with suppress(psutil.NoSuchProcess):
                found.append(f"process {each.pid} ({' '.join(each.cmdline())[:80]}) still runs")
        return found

    def leftover(self) -> list[str]:
        """Say what files still wait in the folders of logs."""
        waiting = [*self.logs.rglob("*.spool"), *self.logs.rglob("*.part")]
        return [f"{path.name} is left" for path in waiting]

    def finished(self) -> list[str]:
        """Say what is wrong with the finished study."""
        rows = self.rows()
        found = []
        if (counted := finished_trials(rows)) != self.trials:
            found.append(f"{counted} trials, not {self.trials}")
        untold = [row.number for row in rows if not row.told]
        if untold:
            found.append(f"Optuna was not told of {untold}")
        if any(row.state == "running" for row in rows):
            found.append("a trial still runs in the database")
        return found


@contextmanager
def mounted(folder: Path, *, mib: int) -> Iterator[Path]:
    """Have a disk of its own at a folder within the block."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "night", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def full(folder: Path, *, leave: int = 0) -> Iterator[None]:
    """Have the disk of a folder full within the block, but for some bytes."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    if leave:
        os.truncate(filler, max(0, filler.stat().st_size - leave))
    try:
        yield
    finally:
        filler.unlink()


def remount(disk: Path, how: str) -> None:
    """Let a disk of ``mounted`` be written, or not."""
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def folders_of(controller: int) -> list[Path]:
    """Return the run folders whose record names this controller."""
    found = []
    for path in RUNS.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads((path / "processes.json").read_text())
            if record["controller"]["pid"] == controller:
                found.append(path)
    return found
