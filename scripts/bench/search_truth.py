"""Truths that searches are judged by: measured step times, and traffic with a budget.

Step times come from tables of an H200 as they were measured, not from the form of the product's
model, and what its sweep sees of them is wrong in ways that it cannot know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

import numpy as np

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, cell_key, integer
from autotune.forecast.forecaster import log_metrics, peak_running
from autotune.forecast.goal import Goal, Scale
from autotune.forecast.simulation import (
    STEADY,
    EngineShape,
    Simulated,
    Times,
    Traffic,
    simulate,
)
from autotune.forecast.sweep import Calibrated
from autotune.traffic.model import Trace, TraceRequest
from autotune.traffic.synth import synthesize
from autotune.traffic.trace import load_trace
from objectives.arrays import F8, Bools
from objectives.limits import Budget, parse_budget
from objectives.measurement import point_values
from objectives.samples import RequestSamples
from objectives.utilization import Work

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "results" / "h200_trials_aa.json"
AZURE = ROOT.parent / "shared" / "data" / "azure_conv_2023_first_2400s.csv"

LATTICE = Lattice(
    {
        TOKENS: (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
        SEQS: (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512),
    }
)
CELLS = LATTICE.cells()
ROW_OF = {cell_key(cell): row for row, cell in enumerate(CELLS)}
BASELINE: Candidate = {TOKENS: 8192, SEQS: 512}
ANCHOR: Candidate = {TOKENS: 2048, SEQS: 128}
"""Whose truth, with some room, is the budget."""
ROOM = {"ttft_p95": 1.2, "tpot_p95": 1.15, "itl_p99": 1.2}
KEYS = (*ROOM, "utilization")

SHAPE = EngineShape(kv_blocks=57_000, in_flight=2)
WORK = Work(
    flops_per_token=13958643712.0,
    flops_per_pair=524288.0,
    flops_per_sample=1050673152.0,
    source="vllm",
)

BUDGET_REPLAYS, TRUTH_REPLAYS = 5, 40
"""Of each cell: by which the budget is made, and by which cells are judged. Where a queue begins
replays of one cell differ by 17 %, so that a few may have it on the wrong side of a limit."""
JITTERED_STEPS = 997
RUN, STEP = 0.015, 0.05
"""Standard deviations of the logs of step times: of a whole run, and of each step."""
STALLS, STALL_FACTOR = 0.001, 2.0
DRIFT, DRIFT_TRIALS = 0.01, 25
"""Over so many trials step times go this far up and down again."""

TILE, SWEEP_TILE, SWEEP_SHIFT, SWEEP_NOISE = 64, 0.05, -0.07, 0.05
"""What the sweep has wrong: of each tile, of all steps, and of each single one."""

WINDOWS = {"a": ((600, 660), 3.2), "b": ((1200, 1260), 3.2), "c": ((1800, 1860), 2.6)}
"""Seconds of the Azure trace, and how many times as dense they are replayed."""
GENERATED = {"a": 16.0, "b": 19.0, "c": 22.0}
"""Requests per second of the traffic where that trace is not at hand."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Traffic, a budget, and what every cell comes to in truth.

    Attributes:
        name: for people.
        trace: what is replayed.
        traffic: the same for simulations.
        budget: in ms.
        goal: of the columns of ``KEYS``.
        logs: [cells, keys], logs of the metrics.
        losses: [cells], scores; of a cell that misses the budget 1 and by how much.
    """

    name: str
    trace: Trace
    traffic: Traffic
    budget: Budget
    goal: Goal
    logs: F8
    losses: F8

    @property
    def regrets(self) -> F8:
        return np.asarray(self.losses - self.losses.min())

    @property
    def kept(self) -> Bools:
        """Which cells keep the budget."""
        return np.asarray(self.goal.excess(self.logs) == 0)

    @classmethod
    def of(cls, name: str, trace: Trace, traffic: Traffic, logs: F8, rough: F8) -> Self:
        """Return a workload of these true values, with a budget that few cells keep.

        Args:
            name: see above, as the others.
            trace: as above.
            traffic: as above.
            logs: as above.
            rough: the same from fewer replays; the budget is made of it.
        """
        anchor = np.exp(rough[ROW_OF[cell_key(ANCHOR)]])
        limits = zip(ROOM.items(), anchor, strict=False)
        budget = parse_budget(" ".join(f"{key}:{room * ms:.3g}" for (key, room), ms in limits))
        goal = Goal.of(budget, KEYS, ("ttft_p95", "tpot_p95", "utilization"))
        losses = Scale.of(goal, logs).losses(logs)
        return cls(name, trace, traffic, budget, goal, logs, losses)


class Measured:
    """The H200's own figures."""

    @cached_property
    def calibrated(self) -> Calibrated:
        stored = json.loads(MEASURED.read_text(encoding="utf-8"))["calibration"]
        kept = {name: stored[name] for name in ("steps", "whole", "calibration")}
        return Calibrated.from_json({"seconds": 0.0, **kept})

    @cached_property
    def times(self) -> Times:
        """Medians of the sweep, between its sizes straight lines; padded as CUDA graphs are."""
        read = self.calibrated.calibration
        mixed_s = _table({p.tokens: p.median_ms for p in read.points}, 8192)
        decode_s = _table({b.requests: b.median_ms for b in read.batches}, 1024)
        sizes, requests = np.array(read.capture_sizes), np.arange(decode_s.size)
        graph = sizes[np.minimum(np.searchsorted(sizes, requests), sizes.size - 1)]
        padded = np.where(requests <= sizes[-1], graph, requests)
        decode_s = np.where(requests > 0, decode_s[padded], 0.0)
        return Times(
            decode_s=decode_s,
            mixed_s=mixed_s,
            kv_token_s=(read.kv_token_ns or 0.0) * 1e-9,
            pair_s=(read.pair_ns or 0.0) * 1e-9,
            request_s=2e-5,
            host_s=1.5e-3,
            host_request_s=1e-5,
            between_s=0.0,
            between_request_s=0.0,
            jitter=STEADY,
        )

    def swept(self, seed: int) -> Calibrated:
        """Return what a sweep says: the measured one's steps with wrong times."""
        tiles, noise = (np.random.default_rng(each + seed) for each in (1000, 2000))
        true, whole = self.times, 1 + SWEEP_SHIFT
        size = true.mixed_s.size
        tile = np.repeat(1 + tiles.normal(0, SWEEP_TILE, size // TILE + 1), TILE)[:size]
        decodes = 1 + tiles.normal(0, 0.03)
        steps = self.calibrated.steps
        takes_s = np.where(
            steps.prefill_tokens > 0,
            (true.mixed_s * tile)[np.minimum(steps.tokens, size - 1)],
            true.decode_s[np.minimum(steps.decode_requests, true.decode_s.size - 1)] * decodes,
        )
        # What attention costs is not in it.
        takes_s = whole * (takes_s + true.kv_token_s * steps.decode_kv_tokens)
        takes_s = takes_s * (1 + noise.normal(0, SWEEP_NOISE, takes_s.size))
        done_s = np.cumsum(takes_s + 1e-3)
        begun_s = done_s - takes_s
        wrong = replace(steps, begun_s=begun_s, planned_s=begun_s + 2e-4, done_s=done_s)
        return replace(self.calibrated, steps=wrong)


MACHINE = Measured()


def _table(points_ms: Mapping[int, float], size: int) -> F8:
    """Return seconds for 0 to ``size``; beyond the last point by the slope of its last octave."""
    at, ms = np.array(list(points_ms)), np.array(list(points_ms.values()))
    table = np.interp(np.arange(size + 1), at, ms)
    top = int(at[-1])
    slope = (ms[-1] - np.interp(top / 2, at, ms)) / (top / 2)
    table[top + 1 :] = ms[-1] + slope * (np.arange(top + 1, size + 1) - top)
    table[0] = 0.0
    return np.asarray(table / 1e3)


def metrics_of(samples: RequestSamples) -> Mapping[str, float | None]:
    best = MACHINE.calibrated.calibration.best_flops_per_s
    return point_values(samples, KEYS, classes=(), work=WORK, best_flops_per_s=best)


def replayed(
    traffic: Traffic, candidate: Candidate, chance: np.random.Generator, *, drift: float = 1.0
) -> Simulated:
    """Return one replay as it would have been."""
    run = drift * np.exp(chance.normal(0, RUN))
    jitter = run * np.exp(chance.normal(0, STEP, JITTERED_STEPS))
    jitter[chance.random(JITTERED_STEPS) < STALLS] *= STALL_FACTOR
    return simulate(traffic, MACHINE.times, SHAPE, candidate, jitter=jitter)


def luck(seed: int, candidate: Candidate, repeat: int) -> np.random.Generator:
    """Return the chances of a trial: the same for every method that measures this cell."""
    return np.random.default_rng(
        [seed, integer(candidate[TOKENS]), integer(candidate[SEQS]), repeat]
    )


def drifted(seed: int, number: int) -> float:
    """Return how many times as long all steps take in the ``number``-th trial of a study."""
    phase = np.random.default_rng(seed).random()
    return 1 + DRIFT * float(np.sin(2 * np.pi * (number / DRIFT_TRIALS + phase)))


@cache
def workload(name: str) -> Workload:
    """Return a workload; takes a minute for the first time."""
    trace = _trace(name)
    traffic = Traffic.of(trace, SHAPE)
    rough = truth(traffic, replays=BUDGET_REPLAYS)
    return Workload.of(name, trace, traffic, truth(traffic), rough)


def truth(traffic: Traffic, *, replays: int = TRUTH_REPLAYS) -> F8:
    """Return [cells, keys], means of the logs of metrics over so many replays of each cell."""
    logs = [_once(traffic, 77 + each) for each in range(replays)]
    return np.asarray(np.mean(logs, axis=0))


def _once(traffic: Traffic, seed: int) -> F8:
    """Return [cells, keys] of one replay each, with the same chances."""
    found = np.empty((len(CELLS), len(KEYS)))
    # By descending cap: one that is not reached stands for those above what was reached.
    known: dict[int, tuple[int, F8]] = {}
    for row in sorted(range(len(CELLS)), key=lambda each: -integer(CELLS[each][SEQS])):
        tokens, seqs = (integer(CELLS[row][name]) for name in (TOKENS, SEQS))
        if tokens not in known or known[tokens][0] > seqs:
            replay = replayed(traffic, CELLS[row], np.random.default_rng(seed))
            known[tokens] = peak_running(replay), log_metrics(replay, KEYS, metrics_of)
        found[row] = known[tokens][1]
    return found


def _trace(name: str) -> Trace:
    if not AZURE.exists():
        seed = list(WINDOWS).index(name)
        return synthesize("mixed", rate=GENERATED[name], duration_s=20.0, seed=seed)
    window_s, density = WINDOWS[name]
    part = load_trace(AZURE).window(*window_s)
    requests: list[TraceRequest] = [
        replace(each, timestamp_ms=each.timestamp_ms / density) for each in part.requests
    ]
    return Trace.build(
        requests,
        block_size=part.meta.block_size,
        prefixes_known=False,
        source=f"azure {window_s[0]}:{window_s[1]}, {density} times as dense",
    )
