"""SIGKILLs at random instants over one study, and whether it ends as if there had been none."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from faulty import ENDED_WELL, REAL, SIMULATED, Study

from tests.storage.postgres import Server

PACE_S = 0.1
"""How long a start and a replay take at least where they are simulated."""


@dataclass(frozen=True, slots=True)
class Kills:
    """What became of a study.

    ``during`` counts the phases that the kills came in, the last that had begun; ``lost`` are
    trials that were measured and are not stored, ``twice`` those that were measured twice.
    """

    engine: str
    database: str
    kills: int
    during: dict[str, int]
    asked: int
    trials: dict[str, int]
    lost: int
    twice: int
    problems: list[str]
    seconds: int
    ok: bool


def killed(count: int, *, server: Server | None, real: bool, seed: int) -> dict[str, Any]:
    """Kill a study so many times, then let it finish; return what became of it."""
    chance = random.Random(seed)  # noqa: S311 - instants, not secrets.
    settings = REAL if real else {k: v for k, v in SIMULATED.items() if k != "knobs"}
    # So few seconds a run that the study outlasts the kills.
    trials, span_s = (8, 25.0) if real else (max(20, 3 * count // 5), 1.5)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    url = None if server is None else server.database(prepared=False)
    study = Study(folder, url, settings, trials=trials)
    begun_s = time.monotonic()
    during: Counter[str] = Counter()
    problems: list[str] = []
    for number in range(count):
        phase = kill(study, chance.uniform(0.0, span_s))
        during[phase] += 1
        found = [*study.orphans(), *study.unsound()]
        problems += [f"kill {number} in {phase}: {each}" for each in found]
        done = sum(row.state == "complete" for row in study.rows())
        print(f"kill {number} in {phase}: {done} complete {found}", file=sys.stderr, flush=True)
    ended = study.run()
    if ended.code not in ENDED_WELL:
        problems.append(f"ended with {ended.code}: {ended.errors[-500:]}")
    problems += [*study.orphans(), *study.unsound(), *study.leftover(), *study.finished()]
    lost, twice = study.lost(), study.measured_twice()
    states: Counter[str] = Counter(row.state for row in study.rows())
    shutil.rmtree(folder)
    return asdict(
        Kills(
            engine="vllm on a CPU" if real else str(settings["engine"]),
            database="sqlite" if server is None else "postgresql",
            kills=count,
            during=dict(during),
            asked=trials,
            trials=dict(states),
            lost=len(lost),
            twice=len(twice),
            problems=problems,
            seconds=round(time.monotonic() - begun_s),
            ok=not (problems or lost or twice),
        )
    )


def kill(study: Study, delay_s: float) -> str:
    """Kill a run so long after its study was opened for it; return the phase that it was in."""
    run = study.begin(child=[f"--pace={PACE_S}"])
    run.reach("describe")
    time.sleep(delay_s)
    run.process.send_signal(signal.SIGKILL)
    seen = ["describe", *(line.decode().strip() for line in run.says)]
    run.end()
    return seen[-1]
