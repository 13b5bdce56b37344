"""What becomes of a study when a fault comes at night.

Each fault is injected for real into ``autotune tune`` in a child process: on simulated engines
where the fault is ours, and with --real on a real CPU engine where it is vLLM's. After each the
database has to be sound and nothing may run or lie about; then the same command has to finish the
study with exactly the trials that were asked for, none of what was measured lost or counted twice.
Disks that are full or read-only are mounted, which needs root.

    scripts/bench/faults --json OUT.json [--databases sqlite,postgresql] [--only WORDS] [--real]

Rows that the file has already stay if they are not made anew.

With a file alone engines are killed, hung and refused under one supervisor, without a study; see
``faults_engine``.

    scripts/bench/faults OUT.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from faults_ours import FAULTS, Fault
from faults_server import SERVER_FAULTS, running_on_disk
from faults_signals import SIGNALS, interrupted
from faults_vllm import ENGINE_FAULTS
from faulty import ENDED_WELL, REAL, SIMULATED, TRIALS, Seen, Study, mounted

from tests.storage.postgres import Server

PLACES = tempfile.gettempdir()
"""Where the folders of studies are."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a fault.

    ``lost`` counts trials that were measured and are not stored, ``problems`` says what was not
    as promised, ``seconds`` are those of the run that the fault came in, ``took_s`` those of
    all together.
    """

    fault: str
    database: str
    ok: bool
    lost: int
    exit_code: int | None
    words: str
    seconds: float
    problems: Sequence[str]
    took_s: float = 0.0


def injected(fault: Fault, study: Study, database: str) -> Row:
    """Inject a fault into a new study, and finish that."""
    seen = fault.act(study)
    problems = [*seen.problems, *study.orphans(), *study.unsound(), *again(study)]
    return row(fault.name, database, replace(seen, problems=problems), study)


def again(study: Study) -> list[str]:
    """Run the same command again; say what is wrong with what it leaves."""
    ended = study.run()
    found = [] if ended.code in ENDED_WELL else [f"again: {ended.code}, {ended.errors[-300:]}"]
    return [
        *found,
        *study.orphans(),
        *study.unsound(),
        *study.leftover(),
        *study.finished(),
        *(f"trial {number} is lost" for number in study.lost()),
    ]


def row(name: str, database: str, seen: Seen, study: Study) -> Row:
    lost = len(study.lost())
    ok = not seen.problems and not lost
    words = seen.words.replace(f"{study.folder}/", "")
    return Row(name, database, ok, lost, seen.code, words, seen.seconds, seen.problems)


def earlier(output: Path) -> dict[tuple[str, str], Row]:
    """Return the rows of an earlier run, which those of this one replace one by one."""
    if not output.exists():
        return {}
    rows = (Row(**each) for each in json.loads(output.read_text("utf-8"))["rows"])
    return {(each.fault, each.database): each for each in rows}


class Bench:
    """Runs faults on one database after the other, and keeps the rows."""

    def __init__(self, output: Path, only: str) -> None:
        self._output = output
        self._only = only
        self._rows = earlier(output)
        self._begun_s = time.monotonic()

    def faults(self, faults: Sequence[Fault], database: str, server: Server | None) -> None:
        for fault in faults:
            if database in fault.databases and self._only in fault.name:
                with place(fault.mib) as folder:
                    settings, trials = (REAL, 3) if fault.real else (SIMULATED, TRIALS)
                    study = Study(folder, url_of(server), settings, trials=trials)
                    act = fault.act if fault.serve is None else serving(fault.serve, server)
                    self._note(injected(replace(fault, act=act), study, database))

    def signals(self, database: str, server: Server | None) -> None:
        for signum in SIGNALS:
            if self._only not in f"{signum.name} in":
                continue
            with place() as folder:
                study = Study(folder, url_of(server))
                ends = list(interrupted(study, signum))
                problems = again(study)
                for name, seen in ends:
                    found = replace(seen, problems=[*seen.problems, *problems])
                    self._note(row(name, database, found, study))

    def _note(self, found: Row) -> None:
        now_s = time.monotonic()
        found = replace(found, took_s=round(now_s - self._begun_s, 1))
        self._begun_s = now_s
        self._rows[found.fault, found.database] = found
        print(json.dumps(asdict(found), ensure_ascii=False), file=sys.stderr, flush=True)
        rows = list(self._rows.values())
        whole = {
            "ok": sum(each.ok for each in rows),
            "of": len(rows),
            "lost": sum(each.lost for each in rows),
            "seconds": round(sum(each.took_s for each in rows)),
            "rows": [asdict(each) for each in rows],
        }
        text = json.dumps(whole, indent=1, ensure_ascii=False)
        self._output.write_text(f"{text}\n", encoding="utf-8")


def serving(
    act: Callable[[Study, Server], Seen], server: Server | None
) -> Callable[[Study], Seen]:
    """Return a fault of a server as one of a study."""
    if server is None:
        raise ValueError("there is no server")
    return lambda study: act(study, server)


def url_of(server: Server | None) -> str | None:
    return None if server is None else server.database(prepared=False)


@contextmanager
def place(mib: int = 0) -> Iterator[Path]:
    """Have a folder within the block, with a disk of its own in it if it has a size."""
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=PLACES))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        if mib:
            stack.enter_context(mounted(folder / "disk", mib=mib))
        yield folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?", help="faults of single engines")
    parser.add_argument("--json", type=Path, help="faults of whole studies")
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--only", default="", help="part of the names of faults")
    parser.add_argument("--real", action="store_true", help="also on a real CPU engine")
    given = parser.parse_args()
    if given.output is not None:
        import faults_engine

        faults_engine.run_all(given.output)
    if given.json is None:
        return
    for signum in (signal.SIGINT, signal.SIGHUP):
        # What a background job or nohup ignores, the command line would ignore as well.
        signal.signal(signum, signal.SIG_DFL)
    bench = Bench(given.json, given.only)
    for database in filter(None, given.databases.split(",")):
        with ExitStack() as stack:
            served = database == "postgresql"
            server = stack.enter_context(running_on_disk()) if served else None
            bench.faults([*FAULTS, *SERVER_FAULTS], database, server)
            bench.signals(database, server)
    if given.real:
        bench.faults(ENGINE_FAULTS, "sqlite", None)


if __name__ == "__main__":
    main()
