"""Measures what forecasts are checked by: a sweep, the baseline, and candidates nobody has tried.

One engine, started once: a calibration sweep, the baseline twice, then the candidates live, in
order and in reverse, so that each is measured twice and a drift of the machine favours none.

    scripts/bench/forecast_replays STUDY.json REPLAYS.json [--engine sim:PROFILE] [--trace T]
        [--window W] [--density D] [--candidates 8] [--seconds 1500]

scripts/bench/forecast_check reads both files. The candidates are drawn from the lattice, spread
over its step budgets; what was measured by the time limit is written.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from forecast_check import METRICS, read_trace
from forecast_study import Study, write_lines

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key, integer
from autotune.demo import resolve_model
from autotune.settings import REAL, SIMULATED, TuneSettings, parse_engine_args
from autotune.study.calibrate import calibrate
from autotune.study.engines import AnyEngines
from autotune.study.job import Job, make_job
from autotune.study.outcomes import Yardstick
from autotune.study.runner import Result, Runner
from autotune.study.session import open_supervisor
from autotune.study.stage import Stage
from objectives.limits import Budget

DEMO_ARGS = (
    "load_format=dummy",
    "enforce_eager=true",
    "max_model_len=8192",
    "kv_cache_memory_bytes=67108864",
)
RESERVE_S = 60.0
"""Nothing begins for which there may be less time than this."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What is replayed on which engine."""

    settings: TuneSettings
    trace: Mapping[str, Any]
    candidates: int
    seconds: float


def drawn(job: Job, count: int) -> list[Candidate]:
    """Return candidates that differ from the baseline, spread over the step budgets."""
    chance = np.random.default_rng(job.settings.seed)
    cells = [cell for cell in job.lattice.cells() if cell_key(cell) != cell_key(job.baseline)]
    cells.sort(key=lambda cell: integer(cell[TOKENS]))
    return [part[int(chance.integers(len(part)))] for part in _parts(cells, count)]


def _parts(cells: Sequence[Candidate], count: int) -> list[Sequence[Candidate]]:
    edges = np.linspace(0, len(cells), min(count, len(cells)) + 1).astype(int)
    return [cells[low:high] for low, high in itertools.pairwise(edges.tolist())]


class Bench:
    """Replays on one engine, and writes what it has after each."""

    def __init__(self, asked: Asked, engines: AnyEngines, folder: Path, files: Sequence[Path]):
        self._begun = time.monotonic()
        self._asked, self._engines, self._folder = asked, engines, folder
        self._study_file, self._replays_file = files
        settings = asked.settings
        described = engines.describe({"model": settings.model, **settings.engine_args})
        trace = read_trace(asked.trace)
        self.job = make_job(settings, trace, Budget(()), (), described, live=True)
        self._stage = Stage(engines)
        self.rows: list[dict[str, Any]] = []

    def run(self) -> None:
        job = self.job
        calibrated = calibrate(
            job,
            self._stage,
            self._engines,
            tile=int(job.settings.tile.split(",")[0]),
            log_path=self._folder / "calibrate.log",
            on_progress=lambda _: None,
        )
        runner = Runner(job, self._engines, self._stage, lambda _: None)
        first = self._replay(runner, job.baseline)
        words = f"{first.started.info.device}, vLLM {first.started.info.vllm_version}"
        replayed = first.replayed
        study = Study.of(words, first.started.info, calibrated, replayed.steps, replayed.samples)
        write_lines(study.to_json(), self._study_file)
        cells = drawn(job, self._asked.candidates)
        for cell in [*cells, *reversed(cells), job.baseline]:
            if time.monotonic() - self._begun > self._asked.seconds - RESERVE_S:
                break
            self._replay(runner, cell)
        self._stage.clear()

    def _replay(self, runner: Runner, candidate: Candidate) -> Result:
        number = len(self.rows)
        log = self._folder / f"{number}.log"
        result = runner.run(candidate, "live", salt=f"{number}", log_path=log, budget=None)
        metrics = Yardstick.of(self.job).measure(result.replayed.samples).metrics
        self.rows.append(
            {
                "fidelity": "live",
                TOKENS: candidate[TOKENS],
                SEQS: candidate[SEQS],
                **{name: metrics[name] for name in METRICS},
                "spell": None if result.spell is None else result.spell.evidence,
            }
        )
        print(number, *self.rows[-1].values(), file=sys.stderr, flush=True)
        self._write()
        return result

    def _write(self) -> None:
        base = self.job.baseline
        series = {
            "name": self._replays_file.stem,
            "words": "scripts/bench/forecast_replays, live on one engine",
            "traffic": self._asked.settings.trace,
            "study": self._study_file.stem,
            "trace": dict(self._asked.trace),
            "baseline": [base[TOKENS], base[SEQS]],
            "rows": self.rows,
        }
        write_lines({"series": [series]}, self._replays_file)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("replays", type=Path)
    parser.add_argument("--engine", default=REAL, help=f"{REAL}, or sim:PROFILE")
    parser.add_argument("--model", default="demo:tiny-llama")
    parser.add_argument("--trace", default="demo:mixed")
    parser.add_argument("--window", default=None)
    parser.add_argument("--density", type=float, default=1.0, help="how much closer together")
    parser.add_argument("--engine-arg", action="append", default=[])
    parser.add_argument("--tile", default="128,8")
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--warmup-s", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1500.0, help="nothing begins after them")
    return parser.parse_args(arguments)


def asked_of(given: argparse.Namespace, folder: Path) -> Asked:
    simulated = given.engine.startswith(SIMULATED)
    engine_args = parse_engine_args(given.engine_arg or ([] if simulated else DEMO_ARGS))
    settings = TuneSettings(
        model=given.model if simulated else str(resolve_model(given.model)),
        trace=given.trace,
        engine_args=engine_args,
        warmup_s=given.warmup_s,
        tile=given.tile,
        seed=given.seed,
        log_folder=folder,
        engine=given.engine,
    )
    trace = {"path": given.trace, "density": given.density}
    if given.window:
        trace["window"] = given.window
    return Asked(settings, trace, given.candidates, given.seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    if not given.engine.startswith(SIMULATED):
        os.dup2(2, 1)  # vLLM writes to what it finds as stdout.
    folder = Path(tempfile.mkdtemp(prefix="bench-forecast-"))
    asked = asked_of(given, folder)
    with open_supervisor(asked.settings, "forecast") as engines:
        Bench(asked, engines, folder, (given.study, given.replays)).run()


if __name__ == "__main__":
    main()
