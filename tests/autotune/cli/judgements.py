"""Judgements to be put into words."""

from __future__ import annotations

import math

import numpy as np

from autotune.candidates.lattice import Candidate
from autotune.study.costs import WORK_COST, Cell, Fidelity, Noise
from autotune.study.drift import Steadiness
from autotune.study.judgement import Code, Judgement
from objectives.knee import Certainty, Knee, TradeOff
from objectives.limits import Budget, parse_budget
from objectives.score import Scores
from objectives.statistics import Interval
from storage.records import Json
from tests.autotune.study.records import limits

NAMES = ("ttft_p95", "tpot_p95", WORK_COST)
BUDGET = parse_budget("ttft_p95:300 tpot_p95:16")
FASTER = TradeOff(2, (-0.2, 0.001, 0.5), 2.0)
SLOWER = TradeOff(0, (0.1, float("inf"), 0.0), 3.0)


def cell(
    candidate: Candidate,
    ttft_ms: float,
    tpot_ms: float,
    *,
    upper: tuple[float | None, float | None] = (290.0, 15.0),
    rate: float = 1000.0,
    failed_requests: int = 0,
    diagnosis: Json | None = None,
    fidelity: Fidelity = "restart",
    peak_running: int | None = None,
) -> Cell:
    costs = np.array([ttft_ms, tpot_ms, 1000 / rate])
    return Cell(
        candidate=candidate,
        numbers=(0,),
        costs=costs,
        log_costs=np.log(costs)[None],
        metrics={
            "ttft_p95": ttft_ms, "tpot_p95": tpot_ms, "itl_p99": 3 * tpot_ms,
            "tokens_per_busy_s": rate,
        },
        intervals={"ttft_p95": [0.0, upper[0]], "tpot_p95": [0.0, upper[1]]},
        feasible=failed_requests == 0,
        failed_requests=failed_requests,
        diagnosis=diagnosis,
        fidelity=fidelity,
        peak_running=peak_running,
    )  # fmt: skip


FULL = {
    "code": "budget_bound",
    "reason": "97% of the prompt tokens were computed in full steps",
    "next_knob": "raise max_num_batched_tokens",
}
LIGHT = {"code": "under_loaded", "reason": "nothing was chunked", "next_knob": ""}
CELLS = (
    cell(limits(2048), 95.0, 19.6),
    cell(limits(512), 180.0, 9.4, rate=1100),
    cell(limits(768), 150.0, 11.0),
)


def judgement(
    code: Code,
    *,
    winner: int | None,
    nearest: int | None = None,
    cells: tuple[Cell, ...] = CELLS,
    budget: Budget = BUDGET,
    kept: bool | None = True,
    trades: tuple[TradeOff | None, TradeOff | None] = (FASTER, SLOWER),
    used: tuple[bool, bool, bool] = (True, True, True),
    probability: tuple[float, ...] = (0.0, 0.72, 0.28),
    knee_set: tuple[int, ...] = (1, 2),
    expected_loss: float = 0.012,
    loosened: Budget | None = None,
    noise: Noise | None = None,
    too_noisy: bool = False,
    unconfirmed: int | None = None,
    steadiness: Steadiness | None = None,
    scores: tuple[float, ...] = (0.0, 0.0, 0.0),
) -> Judgement:
    certainty = Certainty(np.array(probability), knee_set, expected_loss, 0.05)
    front = np.array([False, True, True])
    return Judgement(
        code=code,
        budget=budget,
        names=NAMES,
        cells=cells,
        winner=winner,
        nearest=nearest,
        loosened=loosened,
        baseline=0,
        knee=None if winner is None else Knee(1, 0.2, front, *trades, None),
        certainty=None if winner is None else certainty,
        scores=Scores(np.array(scores), np.ones(3), 2 * np.ones(3), np.array(used)),
        gain=None if winner is None else (0.314, Interval(0.2, 0.4)),
        noise=noise,
        too_noisy=too_noisy,
        kept=kept,
        unconfirmed=unconfirmed,
        steadiness=steadiness or Steadiness(),
    )


UNREPEATED = "No candidate was measured twice, so the noise between replays is not known."
TIGHT = {
    winner: (
        f"That is more than the room left below the limit on {limit}: another replay may break it."
    )
    for winner, limit in ((0, "tpot_p95"), (1, "ttft_p95"))
}
NOISE = Noise(np.array([1.04, 0.02, math.nan]), 3)
