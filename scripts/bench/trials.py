"""What a trial costs and how far its numbers can be trusted: live limits against restarts.

On one machine, in one run: a calibration sweep, replays of one candidate again and again, other
candidates live and by restarts in turn, and decoding with the recorder on and off.

    scripts/bench/trials OUT.json [--json] [--model M] [--trace T] [--window W] [--candidates ...]
        [--order restart,live,live,restart] [--replays 2] [--seconds 3600]

Each word of ``--order`` is a block of all candidates, which every second block has in reverse, so
that neither a drift of the machine nor the order favours one of them.

Where a machine is lent for less time than a series takes, cut it into several calls. Each has the
same arguments, its own ``--seconds``, and names what the call before it wrote:

    scripts/bench/trials A.json --raw A.npz --recorder-runs 0 --seconds 540 ...
    scripts/bench/trials B.json --raw B.npz --earlier A.json --earlier-raw A.npz ...

The rows (and samples, if given) of the earlier call are taken over, with its calibration, and the
schedule goes on after them. B has everything then; the first row of a call has no turnaround.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, integer
from autotune.demo import resolve_model, resolve_trace
from autotune.engine.supervisor import Started, Supervisor
from autotune.forecast.ladder import sequence_caps, worthwhile_budgets
from autotune.forecast.sweep import Calibrated
from autotune.settings import TuneSettings, parse_engine_args
from autotune.study.calibrate import calibrate
from autotune.study.costs import Fidelity
from autotune.study.job import Job, make_job
from autotune.study.outcomes import Yardstick
from autotune.study.runner import Result, Runner
from autotune.study.stage import Stage
from autotune.traffic.trace import load_trace
from autotune.traffic.window import parse_window
from objectives.limits import Budget
from objectives.statistics import student_t_95

METRICS = ("ttft_p95", "tpot_p95", "itl_p99", "utilization")
DEMO_ARGS = (
    "load_format=dummy",
    "enforce_eager=true",
    "max_model_len=8192",
    "kv_cache_memory_bytes=67108864",
)
DEMO_CANDIDATES = "512/64,1024/128,2048/128,768/32"


FIDELITIES: Mapping[str, Fidelity] = {"restart": "restart", "live": "live"}


@dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed, as the row of it says."""

    part: str
    fidelity: Fidelity
    candidate: Mapping[str, int]

    def is_row(self, row: Mapping[str, Any]) -> bool:
        own = {"part": self.part, "fidelity": self.fidelity, **self.candidate}
        return all(row[name] == value for name, value in own.items())


def schedule(
    candidates: Sequence[Mapping[str, int]], order: Sequence[Fidelity], *, aa: int, replays: int
) -> list[Replay]:
    """Return what is replayed: the first candidate for A/A, then the blocks."""
    found = [Replay("aa", "live", candidates[0])] * aa
    for number, fidelity in enumerate(order):
        for candidate in candidates if number % 2 == 0 else reversed(candidates):
            found += [Replay("pairs", fidelity, candidate)] * replays
    return found


class KeptStage(Stage):
    """Keeps an engine until another is needed, so that a restart can be measured twice."""

    def ready(
        self, job: Job, candidate: Candidate, fidelity: Fidelity, log_path: Path
    ) -> tuple[Started, float | None]:
        if self._running is not None:
            self._running = replace(self._running, measured=False)
        return super().ready(job, candidate, fidelity, log_path)

    def release(self, job: Job, candidate: Candidate, fidelity: Fidelity) -> None:
        """The next trial that needs another engine stops this one."""


class Bench:
    """Runs replays within a time budget, and writes what it has after each."""

    def __init__(self, given: argparse.Namespace, supervisor: Supervisor, folder: Path) -> None:
        self.begun = time.monotonic()
        self._seconds = given.seconds
        self._output: Path = given.output
        self._folder = folder
        engine_args = parse_engine_args(given.engine_arg or DEMO_ARGS)
        settings = TuneSettings(
            model=str(resolve_model(given.model)),
            trace=given.trace,
            engine_args=engine_args,
            warmup_s=given.warmup_s,
            tile=given.tile,
        )
        trace = load_trace(resolve_trace(given.trace))
        if given.window:
            trace = parse_window(given.window).apply(trace)
        described = supervisor.describe({"model": settings.model, **engine_args})
        job = make_job(settings, trace, Budget(()), (), described)
        self.candidates = [_candidate(text) for text in given.candidates.split(",")]
        top = _candidate(given.envelope) if given.envelope else job.baseline
        every = [*self.candidates, top]
        ladders = {n: tuple(sorted({integer(each[n]) for each in every})) for n in (TOKENS, SEQS)}
        self.job = replace(job, lattice=Lattice(ladders), live=True)
        self.tile = int(given.tile.split(",")[0])
        self.stage = KeptStage(supervisor)
        self._supervisor = supervisor
        self._runner = Runner(self.job, supervisor, self.stage, lambda _: None)
        self._yardstick = Yardstick.of(self.job)
        self.rows: list[dict[str, Any]] = []
        self.arrays: dict[str, Any] = {}
        self.result: dict[str, Any] = {
            "device": described.info.device,
            "vllm_version": described.info.vllm_version,
            "model": given.model,
            "engine_args": engine_args,
            "trace": given.trace.rsplit("/", 1)[-1],
            "window": given.window,
            "requests": len(trace.requests),
            "duration_s": trace.duration_s,
            "warmup_s": given.warmup_s,
            "envelope": {name: ladder[-1] for name, ladder in ladders.items()},
            "rows": self.rows,
        }

    def left_s(self) -> float:
        return float(self._seconds - (time.monotonic() - self.begun))

    def calibrate(self) -> None:
        begun = time.monotonic()
        calibrated = calibrate(
            self.job,
            self.stage,
            self._supervisor,
            tile=self.tile,
            log_path=self._folder / "calibrate.log",
            on_progress=lambda _: None,
        )
        self.job = replace(self.job, calibrated=calibrated)
        self._yardstick = Yardstick.of(self.job)
        calibration = calibrated.calibration
        ladders, top = self.job.lattice.ladders, self.result["envelope"]
        self.result["calibration"] = {
            "seconds_with_start": time.monotonic() - begun,
            "budgets": worthwhile_budgets(
                calibration, tile=self.tile, low=self.tile, top=top[TOKENS]
            ),
            "caps": sequence_caps(calibration.capture_sizes, tile=8, top=top[SEQS]),
            "searched_here": {name: list(values) for name, values in ladders.items()},
            **calibrated.to_json(),
        }
        self.write()

    def take_calibration(self, earlier: Path) -> None:
        """Take the step times of an earlier run, for utilization to be a share of their best."""
        calibration = json.loads(earlier.read_text(encoding="utf-8"))["calibration"]
        self.job = replace(self.job, calibrated=Calibrated.from_json(calibration))
        self._yardstick = Yardstick.of(self.job)
        self.result["calibration_of"] = earlier.name

    def take_rows(
        self, earlier: Mapping[str, Any], raw: Path | None, planned: Sequence[Replay]
    ) -> None:
        """Go on after the rows of an earlier result.

        Raises:
            ValueError: it was measured otherwise, or in another order.
        """
        own = {name: value for name, value in self.result.items() if name != "rows"}
        other = [name for name, value in own.items() if earlier.get(name) != value]
        if other:
            raise ValueError(f"the earlier call had another {', another '.join(other)}")
        rows = earlier["rows"]
        if not follows(planned, rows):
            raise ValueError("the rows of the earlier call are not how this schedule begins")
        self.rows += rows
        if raw is not None:
            with np.load(raw) as arrays:
                self.arrays.update(arrays)

    def trial(self, replay: Replay) -> None:
        number = len(self.rows)
        candidate, fidelity, part = replay.candidate, replay.fidelity, replay.part
        result = self._runner.run(
            candidate,
            fidelity,
            salt=f"{part}-{number}",
            log_path=self._folder / f"{number}.log",
            budget=None,
        )
        self.rows.append({"part": part, "fidelity": fidelity, **self._row(candidate, result)})
        for name, array in result.replayed.samples.to_arrays().items():
            self.arrays[f"{number}_{name}"] = array
        self.write()
        shown = {name: self.rows[-1].get(name) for name in (*METRICS, "turnaround_s", "start_s")}
        print(number, part, fidelity, candidate, shown, file=sys.stderr, flush=True)

    def _row(self, candidate: Candidate, result: Result) -> dict[str, Any]:
        measurement = self._yardstick.measure(result.replayed.samples)
        info = result.started.info
        return {
            TOKENS: candidate[TOKENS],
            SEQS: candidate[SEQS],
            **{name: measurement.metrics[name] for name in METRICS},
            "tokens_per_busy_s": measurement.metrics["tokens_per_busy_s"],
            "send_lag_p99_ms": measurement.send_lag_p99_ms,
            **result.timings,
            "warmup": result.replayed.warmup.to_json(),
            "spell": None if result.spell is None else result.spell.evidence,
            "load": result.load.to_json(),
            "hardware": result.hardware.to_json(),
            "ground": result.started.ground.to_json(),
            "kv_cache_tokens": info.kv_cache_tokens,
            "largest_graph": max(info.capture_sizes, default=None),
            "processes": len(self._supervisor.running()),
        }

    def write(self) -> None:
        self._output.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")


def follows(planned: Sequence[Replay], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows are how a schedule begins."""
    known = zip(planned, rows, strict=False)
    return len(rows) <= len(planned) and all(replay.is_row(row) for replay, row in known)


def _candidate(text: str) -> dict[str, int]:
    tokens, seqs = text.split("/")
    return {TOKENS: int(tokens), SEQS: int(seqs)}


def aa_spread(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the standard deviation of the logs of each metric over equal replays."""
    own = [row for row in rows if row["part"] == "aa" and row["spell"] is None]
    spread = {name: _deviation([row[name] for row in own]) for name in METRICS}
    return {"replays": len(own), **spread}


def _deviation(values: Sequence[float | None]) -> float | None:
    known = [math.log(value) for value in values if value]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def live_vs_restart(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each candidate how its live replays differ from those after a restart.

    As shares, with 90 % bounds: t over the logs, with the deviations of all candidates pooled.
    """
    pairs = [row for row in rows if row["part"] == "pairs" and row["spell"] is None]
    cells = sorted({(row[TOKENS], row[SEQS]) for row in pairs})
    found = []
    for tokens, seqs in cells:
        own = [row for row in pairs if (row[TOKENS], row[SEQS]) == (tokens, seqs)]
        groups = {f: [r for r in own if r["fidelity"] == f] for f in ("live", "restart")}
        if not all(groups.values()):
            continue
        entry: dict[str, Any] = {
            "candidate": f"{tokens}/{seqs}",
            **{f"{name}_replays": len(group) for name, group in groups.items()},
        }
        for key in ("kv_cache_tokens", "largest_graph"):
            entry[key] = {name: group[0][key] for name, group in groups.items()}
        for name in METRICS:
            entry[name] = _difference(groups, pairs, cells, name)
        found.append(entry)
    return found


def _difference(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
    pairs: Sequence[Mapping[str, Any]],
    cells: Sequence[tuple[int, int]],
    name: str,
) -> dict[str, float | None] | None:
    """Return the difference as a share with its bounds, None where a replay has no such metric."""
    if any(not row[name] for row in pairs):
        return None
    logs = {f: np.log([row[name] for row in group]) for f, group in groups.items()}
    squares, degrees = 0.0, 0
    for tokens, seqs in cells:
        for fidelity in ("live", "restart"):
            own = [
                math.log(row[name])
                for row in pairs
                if (row[TOKENS], row[SEQS], row["fidelity"]) == (tokens, seqs, fidelity)
            ]
            squares += float(np.var(own)) * len(own) if own else 0.0
            degrees += max(0, len(own) - 1)
    shift = float(logs["live"].mean() - logs["restart"].mean())
    if not degrees:
        return {"difference": math.expm1(shift), "low": None, "high": None}
    error = math.sqrt(squares / degrees * sum(1 / each.size for each in logs.values()))
    half = float(student_t_95(degrees)) * error
    low, high = math.expm1(shift - half), math.expm1(shift + half)
    return {"difference": math.expm1(shift), "low": low, "high": high}


def turnaround(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the seconds from a last token to the next candidate's first warm-up request.

    Between live trials without a start, and where an engine was started; with the warm-up after
    each beside it.
    """
    groups = {
        "live": [r for r in rows if r["fidelity"] == "live" and r["start_s"] is None],
        "restart": [r for r in rows if r["start_s"] is not None],
    }
    found: dict[str, Any] = {}
    for name, group in groups.items():
        seconds = [r["turnaround_s"] for r in group if r["turnaround_s"] is not None]
        found[name] = {
            "seconds": seconds,
            "median_s": float(np.median(seconds)) if seconds else None,
            "warmup_s": [r["warmup_s"] for r in group],
        }
    live, restart = (found[name]["median_s"] for name in ("live", "restart"))
    return {"ratio": restart / live if live and restart else None, **found}


def restarts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what was in use before each start."""
    return [
        {"start_s": row["start_s"], **row["ground"]} for row in rows if row["start_s"] is not None
    ]


def recorder_overhead(engine_args: Mapping[str, Any], *, runs: int, seqs: int) -> dict[str, Any]:
    """Return the time of a decode step with the recorder on over that with it off, in turn.

    In an engine of this process, so that nothing but the switch differs.
    """
    import os

    from autotune.engine.host import ENVIRONMENT
    from autotune.engine.vllm_engine import VllmEngine

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    async def measure() -> dict[str, Any]:
        engine = VllmEngine.start(engine_args)
        try:
            return await _in_turn(engine, runs=runs, seqs=seqs)
        finally:
            engine.stop()

    return asyncio.run(measure())


async def _in_turn(engine: Any, *, runs: int, seqs: int) -> dict[str, Any]:
    steps, times = 200, {"on": [], "off": []}  # type: ignore[var-annotated]
    for number in range(2 * runs + 2):
        state = "on" if number % 2 == 0 else "off"
        await engine.record(steps=state == "on")
        stamps: list[list[float]] = [[] for _ in range(seqs)]

        async def consume(row: int, name: str, stamps: list[list[float]] = stamps) -> None:
            stream = engine.generate([5 + row] * 32, steps, request_id=name, salt=name, priority=0)
            async for _ in stream:
                stamps[row].append(time.perf_counter())

        await asyncio.gather(*(consume(row, f"run-{number}-{row}") for row in range(seqs)))
        await engine.take_steps(started_at=0.0)
        # The first and last steps are shared with prefill and with fewer requests.
        gaps = [np.diff(each[steps // 4 : -steps // 4]) for each in stamps]
        if number > 1:
            times[state].append(float(np.mean(np.concatenate(gaps))) * 1e3)
    return {
        "sequences": seqs,
        "step_ms": times,
        "ratio": float(np.median(times["on"]) / np.median(times["off"])),
    }


def run(bench: Bench, given: argparse.Namespace) -> None:
    """Measure in turns; nothing begins for which there is no time."""
    planned = schedule(bench.candidates, given.order, aa=given.aa, replays=given.replays)
    earlier: Mapping[str, Any] = {}
    if given.earlier is not None:
        earlier = json.loads(given.earlier.read_text(encoding="utf-8"))
        bench.take_rows(earlier, given.earlier_raw, planned)
    if given.calibration is not None:
        bench.take_calibration(given.calibration)
    elif "calibration" in earlier:
        # The rows that are there are shares of its best, so those to come have to be.
        bench.take_calibration(given.earlier)
        bench.result["calibration"] = earlier["calibration"]
    else:
        bench.calibrate()
    for replay in planned[len(bench.rows) :]:
        if bench.left_s() < given.reserve:
            return
        bench.trial(replay)


def _order(text: str) -> list[Fidelity]:
    try:
        return [FIDELITIES[word] for word in text.split(",")]
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"{error} is neither restart nor live") from None


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--model", default="demo:tiny-llama")
    parser.add_argument("--trace", default="demo:mixed")
    parser.add_argument("--window", default=None)
    parser.add_argument("--engine-arg", action="append", default=[])
    parser.add_argument("--tile", default="128,8")
    parser.add_argument("--candidates", default=DEMO_CANDIDATES, help="tokens/seqs, first for A/A")
    parser.add_argument("--envelope", default=None, help="tokens/seqs of the running engine")
    parser.add_argument("--warmup-s", type=float, default=4.0)
    parser.add_argument("--aa", type=int, default=6)
    parser.add_argument(
        "--order", type=_order, default="restart,live,live,restart", help="blocks, in turn"
    )
    parser.add_argument("--replays", type=int, default=2, help="in a row of each candidate")
    parser.add_argument("--calibration", type=Path, default=None, help="an earlier result")
    parser.add_argument("--recorder-runs", type=int, default=8)
    parser.add_argument("--recorder-seqs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3600.0, help="nothing begins after them")
    parser.add_argument("--reserve", type=float, default=90.0, help="of them, for one trial")
    parser.add_argument("--raw", type=Path, default=None, help="samples of all replays, .npz")
    parser.add_argument("--earlier", type=Path, default=None, help="a result to go on from")
    parser.add_argument("--earlier-raw", type=Path, default=None, help="its samples, .npz")
    given = parser.parse_args(arguments)
    if given.earlier_raw is not None and given.earlier is None:
        parser.error("--earlier-raw has samples of the rows of --earlier")
    return given


def main() -> None:
    given = parsed()
    # vLLM writes to what it finds as stdout, which is for the figures alone.
    stdout = os.dup(1)
    os.dup2(2, 1)
    folder = Path(tempfile.mkdtemp(prefix="bench-trials-"))
    with Supervisor(log_folder=folder) as supervisor:
        bench = Bench(given, supervisor, folder)
        engine_args = bench.job.envelope(bench.candidates[0])
        run(bench, given)
        bench.stage.clear()
    rows = bench.rows
    overhead = None
    if given.recorder_runs:
        bench.result["recorder"] = recorder_overhead(
            engine_args, runs=given.recorder_runs, seqs=given.recorder_seqs
        )
        overhead = bench.result["recorder"]["ratio"]
    turned = turnaround(rows)
    figures = {
        "turnaround_ratio": turned["ratio"],
        "live_vs_restart": live_vs_restart(rows),
        "aa_spread": aa_spread(rows),
        "recorder_overhead_ratio": overhead,
        "restarts": restarts(rows),
    }
    bench.result.update(figures, turnaround=turned, seconds=time.monotonic() - bench.begun)
    bench.write()
    if given.raw is not None:
        np.savez_compressed(given.raw, **bench.arrays)
    if given.json:
        os.write(stdout, (json.dumps(figures, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
