"""Whether a study with a deadline ends inside its time, with its winner confirmed.

Studies of different lengths, windows and ways to search on the simulated engine, whose time
passes on paper; with --real N as many on a real CPU engine with the demo model as well, which
take 7, 9 and 12 minutes in turn. A run is ok if it ended by its deadline, the baseline and its
best rival were restarted to be confirmed, and nothing of that or of what is held out was left
out. Of each: where its time went, in shares of the time until the deadline.

    scripts/bench/night [--json OUT.json] [--runs 20] [--seed 1] [--again 4 13] [--real 0]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from autotune import tuning
from autotune.settings import TuneSettings, Value
from autotune.simulated.engines import SimulatedEngines
from autotune.study.ending import ENDED_BY, LEFT_OUT, ending_of
from autotune.study.judgement import Judgement
from autotune.study.session import open_supervisor
from autotune.traffic.synth import synthesize
from autotune.traffic.trace import save_trace
from storage.records import StudyRecord, TrialRecord
from storage.repository import open_repository

PROFILE = "sim:h200-llama8b"
BUDGET = "ttft_p95:800 tpot_p95:40"
LENGTHS_S = 20 * 60.0, 10 * 3600.0
WINDOWS = 11, 22
"""How many windows long a run is."""
RATE = 1.0
FORECAST_UP_TO_S = 2 * 3600.0
"""Forecasts of all cells of the long window of a longer run would take minutes, each time."""
TRIALS = 400
KNOBS: dict[str, list[Value]] = {
    "max_num_batched_tokens": [256, 512, 1024, 2048, 4096, 8192],
    "max_num_seqs": [16, 64, 256, 1024],
}
NAME = "night"
REAL_S = 420, 540, 720
REAL = shlex.split(
    "--model demo:tiny-llama --trace demo:mixed --window 0:15 --warmup-s 4 --trials 60 "
    "--engine-arg load_format=dummy --engine-arg enforce_eager=true --engine-arg "
    "max_model_len=8192 --engine-arg kv_cache_memory_bytes=67108864"
)
REAL_BUDGET = "ttft_p95:500 itl_p99:60"


@dataclass(frozen=True, slots=True)
class Run:
    """What is run: seconds until the deadline, of the window, and how it searches."""

    seed: int
    deadline_s: float
    window_s: float
    fidelity: str
    calibrate: bool
    holdout: str | None


@dataclass(frozen=True, slots=True)
class Night:
    """What came of a run.

    ``trials`` have a result; ``restarted`` of the confirmation have one. Shares are of the time
    until the deadline: replaying (warm-up included), starting and stopping engines, what a trial
    or a calibration takes beside that, and what was left in the end.
    """

    engine: str
    deadline_s: float
    window_s: float
    fidelity: str
    calibrate: bool
    holdout: str | None
    end_s: float
    trials: int
    restarted: int
    ended_by: str | None
    left_out: Mapping[str, int] | None
    verdict: str | None
    replaying: float
    starting: float
    waiting: float
    idle: float
    ok: bool


class Silent:
    """A watcher that tells nobody."""

    def say(self, text: str) -> None: ...

    def leased(self) -> None: ...

    def due(self, left_s: float) -> None: ...

    def judging(self, judge: Callable[[], Judgement | None]) -> None: ...

    def alive(self) -> None: ...

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None: ...

    def begun(self, row: TrialRecord, position: int, total: int) -> None: ...

    def progress(self, body: Mapping[str, Any]) -> None: ...

    def finished(self, row: TrialRecord) -> None: ...


def drawn(seed: int, runs: int) -> list[Run]:
    """Return runs of lengths that are spread evenly over their logarithms."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret here.
    low, high = map(math.log, LENGTHS_S)
    found = []
    for number in range(runs):
        deadline_s = math.exp(low + (high - low) * number / max(1, runs - 1))
        found.append(
            Run(
                seed=chance.randrange(2**31),
                deadline_s=round(deadline_s),
                window_s=round(deadline_s / chance.uniform(*WINDOWS), 1),
                fidelity=chance.choice(["auto", "auto", "restart"]),
                calibrate=number % 3 == 0 and deadline_s <= FORECAST_UP_TO_S,
                holdout=chance.choice([None, None, "20%"]),
            )
        )
    return found


def simulated(run: Run, folder: Path) -> Night:
    """Run a study on paper; its end is what the clock of its engines says."""
    trace, url = folder / "trace.jsonl", f"sqlite:///{folder / 'night.db'}"
    save_trace(synthesize("mixed", rate=RATE, duration_s=run.window_s, seed=run.seed), trace)
    settings = TuneSettings(
        model=PROFILE,
        engine=PROFILE,
        trace=str(trace),
        budget=BUDGET,
        trials=TRIALS,
        timeout=f"{run.deadline_s:.0f}s",
        fidelity="restart" if run.fidelity == "restart" else "auto",
        calibrate=run.calibrate,
        holdout=run.holdout,
        too_long="skip",
        knobs=KNOBS if run.calibrate else {},
        seed=run.seed,
        storage=url,
        study_name=NAME,
        log_folder=folder / "logs",
    )
    opened: list[SimulatedEngines] = []

    def remembered(settings: TuneSettings, name: str) -> Any:
        engines = open_supervisor(settings, name)
        opened.extend(each for each in [engines] if isinstance(each, SimulatedEngines))
        return engines

    with patch.object(tuning, "open_supervisor", remembered):
        tuning.run_study(settings, Silent(), environ={})
    return night(run, url, engine=PROFILE, end_s=opened[-1].clock())


def real(deadline_s: int, folder: Path) -> Night:
    """Run a study on a real engine, by the command line."""
    url = f"sqlite:///{folder / 'night.db'}"
    command = [sys.executable, "-m", "autotune", "tune", *REAL, "--budget", REAL_BUDGET]
    command += ["--timeout", f"{deadline_s}s", "--storage", url, "--study-name", NAME]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    begun_s = time.monotonic()
    subprocess.run(command, cwd=folder, env=environ, check=False, stdout=subprocess.DEVNULL)
    end_s = time.monotonic() - begun_s
    run = Run(0, deadline_s, 15.0, "auto", calibrate=True, holdout=None)
    return night(run, url, engine="vllm on a CPU", end_s=end_s)


def night(run: Run, url: str, *, engine: str, end_s: float) -> Night:
    """Return what came of a run that has ended."""
    with open_repository(url, create=False) as repository:
        study = repository.study(NAME)
        rows = repository.trials(study.id)
    ended = ending_of(study)
    seconds = spent_s(rows)
    finished = [row for row in rows if row.state in ("complete", "infeasible")]
    restarted = sum(row.phase == "confirm" for row in finished)
    left_out = ended[LEFT_OUT]
    held = run.holdout is None or (left_out or {}).get("holdout_replays") == 0
    total_s = run.deadline_s
    return Night(
        engine=engine,
        deadline_s=total_s,
        window_s=run.window_s,
        fidelity=run.fidelity,
        calibrate=run.calibrate,
        holdout=run.holdout,
        end_s=round(end_s, 1),
        trials=len(finished),
        restarted=restarted,
        ended_by=ended[ENDED_BY],
        left_out=left_out,
        verdict=None if study.verdict is None else study.verdict["code"],
        replaying=round((seconds["warmup_s"] + seconds["replay_s"]) / total_s, 3),
        starting=round((seconds["start_s"] + seconds["stop_s"]) / total_s, 3),
        waiting=round((end_s - sum(seconds.values())) / total_s, 3),
        idle=round((total_s - end_s) / total_s, 3),
        ok=end_s <= total_s and restarted >= 2 and held,
    )


def spent_s(rows: Sequence[TrialRecord]) -> dict[str, float]:
    """Return the seconds of all trials by part."""
    names = ("start_s", "warmup_s", "replay_s", "stop_s")
    timed = [row.timings or {} for row in rows]
    return {name: sum(each.get(name) or 0.0 for each in timed) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures go; else they are printed")
    parser.add_argument("--runs", type=int, default=20, help="on the simulated engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--again",
        type=int,
        nargs="*",
        help="only these runs, by number, and those not in the file",
    )
    parser.add_argument("--real", type=int, default=0, help="on a real CPU engine")
    given = parser.parse_args()
    nights: list[Night] = []
    if given.json is not None and given.again:
        nights = [Night(**row) for row in json.loads(given.json.read_text("utf-8"))["rows"]]
    for number, run in enumerate(drawn(given.seed, given.runs)):
        if given.again and number not in given.again and number < len(nights):
            continue
        with tempfile.TemporaryDirectory() as folder:
            nights[number : number + 1] = [simulated(run, Path(folder))]
        print(number, nights[number], file=sys.stderr)
        write(nights, given.json)
    for number in range(given.real):
        with tempfile.TemporaryDirectory() as folder:
            nights.append(real(REAL_S[number % len(REAL_S)], Path(folder)))
        print(nights[-1], file=sys.stderr)
        write(nights, given.json)
    if given.json is None:
        print(json.dumps(result(nights), indent=2))


def write(nights: Sequence[Night], path: Path | None) -> None:
    """Write all runs so far: those to come take a while."""
    if path is not None:
        path.write_text(f"{json.dumps(result(nights), indent=2)}\n", encoding="utf-8")


def result(nights: Sequence[Night]) -> dict[str, Any]:
    ok = sum(each.ok for each in nights)
    return {"runs": len(nights), "ok": ok, "rows": [asdict(each) for each in nights]}


if __name__ == "__main__":
    main()
