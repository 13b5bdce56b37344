"""Faults of a night that are ours to survive, each injected into a study on simulated engines."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import sqlalchemy
from faulty import NAME, Ended, Seen, Study, full, mounted, remount

from storage.backup import back_up
from storage.database import open_database
from storage.leases import row_of, study_resource
from storage.owner import Owner
from storage.schema import lease
from tests.storage.postgres import Server

Act = Callable[[Study], Seen]
BOTH, SQLITE, POSTGRESQL = ("sqlite", "postgresql"), ("sqlite",), ("postgresql",)


def _nothing(_study: Study) -> Seen:
    return Seen(None, "", 0.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by name: what is done, and on which databases it can be.

    ``mib`` is the size of the disk of its own that the study has, 0 for none; ``real`` is for one
    of a real engine, ``serve`` for one of a database server.
    """

    name: str
    act: Act = _nothing
    databases: Sequence[str] = BOTH
    mib: int = 0
    real: bool = False
    serve: Callable[[Study, Server], Seen] | None = None


def seen(ended: Ended, *words: str, code: int, problems: Sequence[str] = ()) -> Seen:
    """Return what was seen, and as a problem an end that is not the promised one."""
    found = list(problems)
    line = ended.line(*words)
    if ended.code != code:
        found.append(f"exit code {ended.code}, not {code}: {ended.errors[-300:]}")
    if words and not line:
        found.append(f"nothing was said of {words[0]!r}")
    return Seen(ended.code, line, ended.seconds, found)


# Databases.


def locked(study: Study, *, seconds: float = 6.0) -> Seen:
    """Another process holds the write lock for longer than SQLite waits by itself."""
    run = study.begin(hold="store:2")
    run.reach()
    with write_lock(study):
        run.go()
        time.sleep(seconds)
    return seen(run.end(), "tried again", code=0)


def locked_for_long(study: Study) -> Seen:
    run = study.begin(hold="store:2", database_patience_s=3.0)
    run.reach()
    with write_lock(study):
        run.go()
        return seen(run.end(), "error:", code=4)


@contextmanager
def write_lock(study: Study) -> Iterator[None]:
    engine = sqlalchemy.create_engine(study.url)
    with engine.connect() as connection:
        if study.sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("LOCK TABLE autotune_trial, autotune_lease, trials")
        try:
            yield
        finally:
            connection.rollback()
    engine.dispose()


def disk_full(study: Study) -> Seen:
    """Database, logs and the files of what was measured, all on one disk that fills up."""
    run = study.begin(hold="store:2")
    run.reach()
    with full(study.disk):
        run.go()
        return seen(run.end(), "error:", code=4)


def disk_of_logs_full(study: Study) -> Seen:
    logs = study.logs
    with mounted(logs, mib=24):
        run = study.begin(hold="begin:3")
        run.reach()
        with full(logs):
            run.go()
            ended = seen(run.end(), "error:", code=4)
        again = study.run()
        left = study.leftover()
    return replace(ended, problems=[*ended.problems, *left, *_ended_badly(again)])


def disk_of_status_full(study: Study) -> Seen:
    with mounted(study.folder / "small", mib=1) as small, full(small):
        ended = study.run(
            status_file=str(small / "status.json"), log_file=str(small / "night.log")
        )
    return seen(ended, "No space left", code=0)


def read_only(study: Study) -> Seen:
    """The folder of the database cannot be written when the study goes on."""
    run = study.begin(hold="store:3")
    run.reach()
    run.process.kill()
    run.end()
    remount(study.disk, "ro")
    ended = seen(study.run(), "error:", code=4)
    read = study.command("trials", "--storage", study.url)
    remount(study.disk, "rw")
    return replace(ended, problems=[*ended.problems, *_ended_badly(read)])


def truncated(study: Study) -> Seen:
    """Cut the file to half, when its log has nothing that would mend it."""

    def cut(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.truncate(path, path.stat().st_size // 2)

    return _damaged(study, cut)


def removed(study: Study) -> Seen:
    return _damaged(study, Path.unlink)


def _damaged(study: Study, damage: Callable[[Path], None]) -> Seen:
    """Damage the file in mid-study, and put the newest copy back as docs/storage.md says."""
    run = study.begin(hold="begin:3")
    run.reach()
    copy = back_up(study.file)
    damage(study.file)
    run.go()
    ended = seen(run.end(), "error:", code=4)
    for each in (study.file, *(Path(f"{study.file}-{end}") for end in ("wal", "shm"))):
        each.unlink(missing_ok=True)
    study.file.write_bytes(copy.read_bytes())
    return ended


# Owners.


def another_controller(study: Study) -> Seen:
    """A second controller of the same study, which has to name the first."""
    first = study.begin(hold="replay:2")
    first.reach()
    second = study.run()
    first.go()
    problems = _ended_badly(first.end())
    if str(first.process.pid) not in second.errors:
        problems.append("the first controller is not named")
    return seen(second, "in use", code=75, problems=problems)


def crashed_here(study: Study) -> Seen:
    run = study.begin(hold="replay:2")
    run.reach()
    run.process.kill()
    run.end()
    return seen(study.run(), "took over", code=0)


def crashed_elsewhere(study: Study) -> Seen:
    """A controller of another machine holds the lease, and is heard of no more."""
    run = study.begin(hold="begin:3")
    run.reach()
    run.process.kill()
    run.end()
    take_over(study, expiry_s=120.0)
    refused = study.run()
    problems = [] if refused.code == 75 else [f"exit code {refused.code} while it was leased"]
    take_over(study, expiry_s=-1.0)
    return seen(study.run(), "took over", code=0, problems=problems)


def suspended(study: Study) -> Seen:
    """A controller that was suspended finds its study taken over by another machine."""
    run = study.begin(hold="store:3")
    run.reach()
    run.process.send_signal(signal.SIGSTOP)
    take_over(study, expiry_s=120.0)
    run.process.send_signal(signal.SIGCONT)
    run.go()
    ended = seen(run.end(), "taken over", code=75)
    take_over(study, expiry_s=-1.0)
    return ended


def take_over(study: Study, *, expiry_s: float) -> None:
    """Lease the study to a controller of another machine."""
    engine = open_database(study.url, create=False)
    owner = Owner("f" * 32, "elsewhere", "another/machine", 4711, 1)
    values = row_of(owner, since="2026-11-30T19:00:00", now_s=time.time(), expiry_s=expiry_s)
    with engine.begin() as connection:
        connection.execute(
            sqlalchemy.update(lease)
            .where(lease.c.resource == study_resource(NAME))
            .values(**values)
        )
    engine.dispose()


def readers(study: Study) -> Seen:
    """Everything that reads, while the controller writes."""
    run = study.begin(child=["--pace=0.4"])
    run.reach("tell")
    problems = []
    for words in ("trials", "show 0", "report", "best", "studies"):
        name = [] if words == "studies" else ["--study-name", NAME]
        read = study.command(*words.split(), *name, "--storage", study.url)
        if read.code not in (0, 3):
            problems.append(f"{words} ended with {read.code}: {read.errors[-200:]}")
    run.drain()
    return seen(run.end(), code=0, problems=problems)


# Signals.


def twice(study: Study) -> Seen:
    """A second signal while the first one's work takes long."""
    run = study.begin(hold="stop:1")
    run.reach("replay")
    run.process.send_signal(signal.SIGTERM)
    run.reach()
    run.process.send_signal(signal.SIGTERM)
    begun_s = time.monotonic()
    ended = run.end(within_s=20.0)
    took_s = round(time.monotonic() - begun_s, 2)
    problems = [] if took_s < 2.0 else [f"took {took_s} s"]
    return replace(seen(ended, "SIGTERM", code=143, problems=problems), seconds=took_s)


def first_process(study: Study) -> Seen:
    """As process 1 of a container it is left with orphans, and a SIGTERM."""
    leaves_orphans = "sh -c 'sleep 0.1 & sleep 0.1 & exec sleep 0'"
    container = ("unshare", "--pid", "--fork", "--mount-proc")
    run = study.begin(hold="store:4", within=container, notify=leaves_orphans)
    run.reach()
    time.sleep(1.0)
    first = psutil.Process(run.process.pid).children()[0]
    zombies = [each for each in first.children() if each.status() == psutil.STATUS_ZOMBIE]
    problems = [f"{len(zombies)} processes are not waited for"] if zombies else []
    first.terminate()
    return seen(run.end(), "SIGTERM", code=143, problems=problems)


# What comes from outside.


def corrupt_trace(study: Study) -> Seen:
    """A trace with a line that is torn, which is mended before the study goes on."""
    whole = small_trace(study)
    lines = whole.read_bytes().splitlines(keepends=True)
    whole.write_bytes(b"".join([*lines[:3], lines[3][:20] + b"\n", *lines[4:]]))
    ended = seen(study.run(), "error:", code=2)
    whole.write_bytes(b"".join(lines))
    return ended


def changed_trace(study: Study) -> Seen:
    """A trace that is another when the study goes on, and is put back."""
    path = small_trace(study)
    text = path.read_bytes()
    study.run(trials=2)
    lines = text.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    ended = seen(study.run(), "error:", code=2)
    path.write_bytes(text)
    return ended


def small_trace(study: Study) -> Path:
    from autotune.traffic.synth import synthesize
    from autotune.traffic.trace import save_trace

    path = study.folder / "trace.jsonl"
    save_trace(synthesize("mixed", rate=8.0, duration_s=6.0, seed=1), path)
    # What is known of it beside it would tell of any change at once.
    path.with_suffix(".meta.json").unlink()
    study.settings |= {"trace": str(path), "too_long": "skip"}
    return path


def clock_jump(study: Study) -> Seen:
    return seen(study.run(child=["--jump=7200"]), "time of day has jumped", code=0)


def notify_hangs(study: Study) -> Seen:
    return seen(study.run(notify="sleep 600"), "notify", "sleep", code=0)


def not_a_number(study: Study) -> Seen:
    ended = seen(study.run(child=["--nan-at=2"]), code=0)
    row = study.rows()[1]
    problems = [] if row.state == "failed" else [f"trial 1 is {row.state}"]
    words = f"trial 1 is {row.state}: {row.failure_evidence}"
    return replace(ended, words=words, problems=[*ended.problems, *problems])


def fails_on(study: Study) -> Seen:
    """Every replay fails from one on, by the same class."""
    return seen(study.run(child=["--fails-from=2"]), "error:", code=5)


def _ended_badly(ended: Ended) -> list[str]:
    return [] if ended.code in (0, 3) else [f"ended with {ended.code}: {ended.errors[-300:]}"]


FAULTS = (
    Fault("database locked for 6 s by another process", locked),
    Fault("database locked for longer than its patience", locked_for_long),
    Fault("disk full: database, logs and files on one", disk_full, SQLITE, mib=64),
    Fault("disk full: logs and files of measurements", disk_of_logs_full),
    Fault("disk full: status and log file", disk_of_status_full),
    Fault("folder of the database read-only", read_only, SQLITE, mib=64),
    Fault("database file cut to half", truncated, SQLITE),
    Fault("database file removed", removed, SQLITE),
    Fault("two controllers on one study", another_controller),
    Fault("lease of a controller that crashed here", crashed_here),
    Fault("lease of a controller that crashed elsewhere", crashed_elsewhere),
    Fault("controller suspended, its study taken over", suspended),
    Fault("readers while the controller writes", readers),
    Fault("a second SIGTERM while the first is heeded", twice),
    Fault("SIGTERM to process 1 of a container, with orphans", first_process),
    Fault("trace with a torn line", corrupt_trace),
    Fault("trace changed in mid-study", changed_trace),
    Fault("time of day jumps by two hours", clock_jump),
    Fault("command of --notify hangs", notify_hangs),
    Fault("NaN from an engine", not_a_number),
    Fault("every replay fails", fails_on),
)
