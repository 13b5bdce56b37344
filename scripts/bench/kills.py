"""What is left of a study whose controller is ended by a signal, and whether it goes on.

For each phase and signal one study on a real engine, or with --one-study one for each signal: it
is ended at a random instant of that phase, over and over, resumed each time, and at last left to
finish. After each end: how long until every process is gone; shared memory, sockets and folders
that are left; whether the database is sound. After each resume: whether a finished trial was
lost, and whether the trial that ran was taken back once. At the end: whether every trial was
counted and told once.

    scripts/bench/kills OUT.json [--repeats 10] [--phases start,replay,store] [--signals KILL]
        [--one-study]

The controller is the real command line. It runs in a child that only announces, on a pipe, when
a phase begins; see ``phases``.

With --anywhere N one study is killed N times with SIGKILL at whatever instant, on simulated
engines, and each of the databases, or with --real on a real CPU engine.

    scripts/bench/kills OUT.json --anywhere 100 [--databases sqlite,postgresql] [--real]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pynvml
from faulty import folders_of
from kills_anywhere import killed

from tests.storage.postgres import running

# How long each phase lasts about, in seconds: the signal comes at a random instant of it.
SPANS_S = {
    "describe": 5.0,
    "start": 12.0,
    "warmup": 1.0,
    "replay": 4.0,
    "stop": 3.0,
    "store": 0.04,
    "tell": 0.02,
    "report": 0.2,
}
TUNE = shlex.split("tune --trace demo:mixed --window 0:5 --warmup-s 1")
DEMO = shlex.split(
    "--model demo:tiny-llama --engine-arg load_format=dummy --engine-arg enforce_eager=true "
    "--engine-arg max_model_len=8192 --engine-arg kv_cache_memory_bytes=67108864"
)
GONE_WITHIN_S = 60.0
RUN_WITHIN_S = 600.0
DATABASE = "autotune.db"
PHASES = str(Path(__file__).with_name("phases.py"))


@dataclass(frozen=True)
class Run:
    """One run of the command line in a folder of its own."""

    process: subprocess.Popen[bytes]
    phases: Any
    folder: Path

    def wait_for(self, phase: str) -> bool:
        """Return whether the phase began; False if the run ended before."""
        return any(line.decode().strip() == phase for line in self.phases)

    def drain(self) -> None:
        for _ in self.phases:
            pass


def begin(folder: Path, trials: int, engine: Sequence[str]) -> Run:
    read_end, write_end = os.pipe()
    with (folder / "output.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, PHASES, f"--says={write_end}", "--"),
                *(*TUNE, *engine, "--trials", str(trials)),
            ],
            stdout=log,
            stderr=log,
            pass_fds=[write_end],
            cwd=folder,
        )
    os.close(write_end)
    return Run(process, os.fdopen(read_end, "rb"), folder)


def family_of(run: Run) -> tuple[list[psutil.Process], set[Path]]:
    """Return everything that the run has started, and the shared memory it has mapped."""
    with suppress(psutil.NoSuchProcess):
        ours = psutil.Process(run.process.pid)
        family = [ours, *ours.children(recursive=True)]
        segments: set[Path] = set()
        for each in family:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
                paths = {mapped.path for mapped in each.memory_maps()}
                segments |= {Path(path) for path in paths if path.startswith("/dev/shm/")}  # noqa: S108
        return family, segments
    return [], set()


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end(run: Run, signum: signal.Signals) -> dict[str, Any]:
    """Send the signal; return what became of it and what was left."""
    family, segments = family_of(run)
    sent = time.monotonic()
    run.process.send_signal(signum)
    status = run.process.wait(GONE_WITHIN_S)
    ended_s = time.monotonic() - sent
    # The folder goes last, when its janitor has found and ended late comers too.
    while time.monotonic() - sent < GONE_WITHIN_S:
        folders = folders_of(run.process.pid)
        if not any(map(lives, family)) and not folders:
            break
        time.sleep(0.05)
    run.phases.close()
    return {
        "status": status,
        "ended_s": round(ended_s, 2),
        "gone_s": round(time.monotonic() - sent, 2),
        "processes": len(family),
        "left_processes": [each.pid for each in family if lives(each)],
        "left_segments": [str(path) for path in segments if path.exists()],
        "left_folders": [str(path) for path in folders],
    }


def trials_of(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return whether the database is sound, and its trials."""
    if not (folder / DATABASE).exists():
        return "none", []
    with sqlite3.connect(folder / DATABASE, timeout=60) as database:
        sound = database.execute("PRAGMA integrity_check").fetchone()[0]
        if database.execute("PRAGMA foreign_key_check").fetchone() is not None:
            sound = "foreign keys"
        exists = "SELECT count(*) FROM sqlite_master WHERE name = 'autotune_trial'"
        if not database.execute(exists).fetchone()[0]:
            return sound, []
        query = "SELECT number, state, told, phase, candidate FROM autotune_trial ORDER BY number"
        names = ("number", "state", "told", "phase", "candidate")
        rows = [dict(zip(names, row, strict=True)) for row in database.execute(query)]
    return sound, rows


def finished(rows: Sequence[dict[str, Any]]) -> dict[int, str]:
    return {row["number"]: row["state"] for row in rows if row["state"] in FINISHED}


FINISHED = ("complete", "infeasible", "failed", "invalid", "interrupted")


def faults_between(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Say what a resume has changed that it may not change."""
    later = {row["number"]: row["state"] for row in after}
    found = [
        f"trial {number} was {state} and is {later.get(number)}"
        for number, state in finished(before).items()
        if later.get(number) != state
    ]
    running = [row["number"] for row in before if row["state"] == "running"]
    if len(running) > 1:
        found.append(f"trials {running} run at once")
    found += [
        f"trial {number} ran and is {later.get(number)}"
        for number in running
        if later.get(number) not in ("interrupted", "running")
    ]
    return found


def optuna_states(folder: Path) -> dict[str, int]:
    with sqlite3.connect(folder / DATABASE) as database:
        return dict(Counter(row[0] for row in database.execute("SELECT state FROM trials")))


def gpu_mib() -> list[int]:
    """Return the memory in use on each GPU of this machine."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [pynvml.nvmlDeviceGetMemoryInfo(handle).used // 2**20 for handle in handles]
    return []


def gpu_back_s(before: Sequence[int]) -> float | None:
    """Return the seconds until every GPU has its memory back; None if it does not, or has none."""
    begun = time.monotonic()
    while before and time.monotonic() - begun < GONE_WITHIN_S:
        if all(now <= 1.05 * was for now, was in zip(gpu_mib(), before, strict=True)):
            return round(time.monotonic() - begun, 2)
        time.sleep(0.05)
    return None


def series(
    phases: Sequence[str], signum: signal.Signals, rng: random.Random, engine: Sequence[str]
) -> dict[str, Any]:
    """End one study in one phase after the other, then let it finish."""
    folder = Path(tempfile.mkdtemp(prefix=f"kills-{phases[0]}-"))
    trials = 2 + sum(phase in ("store", "tell") for phase in phases)
    ends: list[dict[str, Any]] = []
    before: list[dict[str, Any]] = []
    gpu_before = gpu_mib()
    for phase in phases:
        run = begin(folder, trials, engine)
        if not run.wait_for(phase):
            run.process.wait(RUN_WITHIN_S)
            run.phases.close()
            break
        delay_s = rng.uniform(0.0, SPANS_S[phase])
        time.sleep(delay_s)
        outcome = end(run, signum)
        sound, rows = trials_of(folder)
        outcome |= {
            "phase": phase,
            "delay_s": round(delay_s, 3),
            "database": sound,
            "faults": faults_between(before, rows),
            "trials": dict(Counter(row["state"] for row in rows)),
            "gpu_back_s": gpu_back_s(gpu_before),
        }
        before = rows
        ends.append(outcome)
        print(signum.name, json.dumps(outcome), file=sys.stderr, flush=True)
    run = begin(folder, trials, engine)
    run.drain()
    status = run.process.wait(RUN_WITHIN_S)
    run.phases.close()
    sound, rows = trials_of(folder)
    states = Counter(row["state"] for row in rows)
    final = {
        "status": status,
        "database": sound,
        "faults": faults_between(before, rows),
        "trials": dict(states),
        "asked": trials,
        "not_told": [row["number"] for row in rows if not row["told"]],
        "optuna": optuna_states(folder),
    }
    print(signum.name, "finished", json.dumps(final), file=sys.stderr, flush=True)
    return {
        "signal": signum.name,
        "gpu_mib_before": gpu_before,
        "ends": ends,
        "finished": final,
    }


def anywhere(given: argparse.Namespace) -> None:
    """Kill one study on each of the databases, and write what became of them."""
    done = []
    for database in given.databases.split(","):
        with running() if database == "postgresql" else nullcontext() as server:
            found = killed(given.anywhere, server=server, real=given.real, seed=given.seed)
        print(json.dumps(found), file=sys.stderr, flush=True)
        done.append(found)
        given.output.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--phases", default="start,replay,store")
    parser.add_argument("--signals", default="KILL")
    parser.add_argument("--one-study", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", type=shlex.split, default=DEMO, help="options of tune")
    parser.add_argument("--anywhere", type=int, default=0, help="kills at any instant")
    parser.add_argument("--databases", default="sqlite", help="of --anywhere")
    parser.add_argument("--real", action="store_true", help="of --anywhere, a real engine")
    given = parser.parse_args()
    if given.anywhere:
        anywhere(given)
        return
    rng = random.Random(given.seed)  # noqa: S311 - instants, not secrets.
    for signum in (signal.SIGINT, signal.SIGHUP):
        # What a background job or nohup ignores, the command line would ignore as well.
        signal.signal(signum, signal.SIG_DFL)
    done = []
    for name in given.signals.split(","):
        signum = signal.Signals[f"SIG{name}"]
        phases = [[phase] * given.repeats for phase in given.phases.split(",")]
        for each in [list(chain(*phases))] if given.one_study else phases:
            done.append(series(each, signum, rng, given.engine))
            given.output.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
