"""Studies whose right verdict is known: what they tune for, and the baseline they begin with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal
from unittest.mock import patch

import numpy as np
import search_methods
import search_truth
from search_methods import Bench, ProductSearch
from search_truth import AZURE, KEYS, SHAPE, Workload, truth

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, cell_key
from autotune.forecast.goal import Goal, Scale
from autotune.forecast.simulation import Traffic
from autotune.study.costs import UTILIZATION
from autotune.study.judgement import CONVERGED_COST
from autotune.traffic.model import Trace
from autotune.traffic.synth import synthesize
from autotune.traffic.trace import load_trace
from objectives.arrays import F8, Bools
from objectives.budget import latency_objectives
from objectives.limits import Budget, parse_budget

Kind = Literal["default_best", "better_cell"]
KINDS: tuple[Kind, ...] = ("default_best", "better_cell")

LATTICE = Lattice({TOKENS: (256, 512, 1024, 2048, 4096, 8192), SEQS: (32, 64, 128)})
CELLS = LATTICE.cells()
ROW_OF = {cell_key(cell): row for row, cell in enumerate(CELLS)}

TRIALS = 20
LOWER = 0.85
"""What one budgeted value of a better cell is of the baseline's, at most."""

REQUESTS = 100, 150
RATES = 10.0, 20.0
"""Requests of a window, and of a second: between idle and saturated."""

BUDGETS = (
    ("ttft_p95", "tpot_p95"),
    ("ttft_p95", "itl_p99"),
    ("ttft_p95", "tpot_p95", "itl_p99"),
)
ROOM = 1.15, 2.0
"""How far above the true values of a cell the limits are."""

EDGE = 0.05
"""So far, as a log, a default that is best keeps clear of its limits.

Neither may what is better than it break them by less: one replay would let it look the best.
"""

BUDGETS_TRIED = 40
"""Budgets drawn for one window before another is taken."""

TRUTH_REPLAYS = 3
NAME = "honesty"


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A study of which the right verdict is known.

    Attributes:
        seed: of all that is drawn for it.
        kind: of its verdict.
        workload: what it tunes for, with the true values of ``CELLS``.
        baseline: row of the cell that it begins with.
        better: [cells], which ones are better than the baseline as ``LOWER`` says.
    """

    seed: int
    kind: Kind
    workload: Workload
    baseline: int
    better: Bools

    def found(self, row: int) -> bool:
        """Whether a cell is a better one, or scores at least as well as one."""
        losses = self.workload.losses
        return bool(self.better[row] or losses[row] <= losses[self.better].max(initial=-np.inf))

    @property
    def room(self) -> float:
        """How far the baseline is within its budget, as a log; negative where it breaks it."""
        goal, logs = self.workload.goal, self.workload.logs[self.baseline]
        return float((goal.log_limits - logs[goal.limits]).min())

    def tuned(self) -> ProductSearch:
        """Return the study of the product at its end, judged."""
        seed = self.seed * len(KINDS) + KINDS.index(self.kind)
        with _instead(CELLS[self.baseline]):
            search = Bench(self.workload, seed).autotune(TRIALS)
            # Once it is judged, it remembers.
            search.judge()
        return search


def drawn(seed: int, kind: Kind) -> Known:
    """Return a study of this kind: window, load, budget and baseline follow from the seed."""
    chance = np.random.default_rng([seed, KINDS.index(kind)])
    while True:
        trace = _window(chance)
        traffic = Traffic.of(trace, SHAPE)
        with patch.object(search_truth, "CELLS", CELLS):
            logs = truth(traffic, replays=TRUTH_REPLAYS)
        for _ in range(BUDGETS_TRIED):
            own = judged(trace, traffic, logs, _budget(logs, chance))
            if able := baselines(own, kind):
                baseline = int(chance.choice(able))
                return Known(seed, kind, own, baseline, better_than(own, baseline))


def better_than(own: Workload, baseline: int) -> Bools:
    """Return [cells], which keep the budget and are better than a baseline beyond doubt.

    One of the latencies that are scored is lower by 15 %, and neither another value that has a
    limit nor the utilization is worse.
    """
    ratios = own.logs - own.logs[baseline]
    scored = own.goal.costs[:-1]
    worse = ratios[:, own.goal.limits] > 0
    idler = ratios[:, KEYS.index(UTILIZATION)] < 0
    lower = ratios[:, scored] <= np.log(LOWER)
    return np.asarray(own.kept & lower.any(axis=1) & ~worse.any(axis=1) & ~idler)


def baselines(own: Workload, kind: Kind) -> list[int]:
    """Return the rows of cells that make a study of this kind if they are its baseline."""
    if not own.kept.any():
        return []
    if kind == "default_best":
        room = (own.goal.log_limits - own.logs[:, own.goal.limits]).min(axis=1)
        best = (own.regrets <= CONVERGED_COST) & _best_loosened(own)
        return [int(row) for row in np.flatnonzero(best & (room >= EDGE))]
    return [row for row in range(len(CELLS)) if better_than(own, row).any()]


def _best_loosened(own: Workload) -> Bools:
    """Return [cells], which are as good as the best if limits are a little looser."""
    loose = replace(own.goal, log_limits=own.goal.log_limits + EDGE)
    losses = Scale.of(loose, own.logs).losses(own.logs)
    return np.asarray(losses - losses.min() <= CONVERGED_COST)


def judged(trace: Trace, traffic: Traffic, logs: F8, budget: Budget) -> Workload:
    goal = Goal.of(budget, KEYS, (*latency_objectives(budget), UTILIZATION))
    losses = Scale.of(goal, logs).losses(logs)
    return Workload(NAME, trace, traffic, budget, goal, logs, losses)


def _budget(logs: F8, chance: np.random.Generator) -> Budget:
    """Draw limits that are a little above what some cell has."""
    names = BUDGETS[chance.integers(len(BUDGETS))]
    some_ms = np.exp(logs[chance.integers(len(logs))])
    rooms = chance.uniform(*ROOM, len(names))
    limits = (
        f"{name}:{room * some_ms[KEYS.index(name)]:.4g}"
        for name, room in zip(names, rooms, strict=True)
    )
    return parse_budget(" ".join(limits))


def _window(chance: np.random.Generator) -> Trace:
    """Draw requests that follow each other, and how dense they come."""
    count, rate = int(chance.integers(*REQUESTS)), float(chance.uniform(*RATES))
    seed = int(chance.integers(2**31))
    if not AZURE.exists():
        return synthesize("mixed", rate=rate, duration_s=count / rate, seed=seed)
    whole = _azure()
    first = seed % (len(whole.requests) - count)
    part = whole.requests[first : first + count]
    begun_ms = part[0].timestamp_ms
    density = rate / ((count - 1) / (part[-1].timestamp_ms - begun_ms) * 1e3)
    return Trace.build(
        [replace(each, timestamp_ms=(each.timestamp_ms - begun_ms) / density) for each in part],
        block_size=whole.meta.block_size,
        prefixes_known=False,
        source=f"azure, {count} requests from {first}, {density:.2f} times as dense",
    )


@cache
def _azure() -> Trace:
    return load_trace(AZURE)


@contextmanager
def _instead(baseline: Candidate) -> Iterator[None]:
    """Let searches have the lattice of this bench, and this baseline."""
    info = search_methods.INFO
    with ExitStack() as stack:
        for name, value in {
            "LATTICE": LATTICE,
            "ROW_OF": ROW_OF,
            "BASELINE": baseline,
            "INFO": replace(info, resolved={**info.resolved, **baseline}),
            "WINDOWS": {NAME: ()},
        }.items():
            stack.enter_context(patch.object(search_methods, name, value))
        yield
