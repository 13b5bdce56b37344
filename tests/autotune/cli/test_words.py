"""The exact sentences of one verdict of each kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.candidates.lattice import Candidate
from autotune.cli.words import time_line, verdict_lines
from autotune.study.costs import WORK_COST, Cell
from autotune.study.judgement import Code, Judgement
from objectives.knee import Certainty, Knee, TradeOff
from objectives.limits import Budget, parse_budget
from objectives.score import Scores
from objectives.statistics import Interval
from tests.autotune.study.records import limits, record

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
    )  # fmt: skip


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
) -> Judgement:
    certainty = Certainty(np.array(probability), knee_set, 0.012, 0.05)
    front = np.array([False, True, True])
    return Judgement(
        code=code,
        budget=budget,
        names=NAMES,
        cells=cells,
        winner=winner,
        nearest=nearest,
        baseline=0,
        knee=None if winner is None else Knee(1, 0.2, front, *trades, certainty),
        scores=Scores(np.zeros(3), np.ones(3), 2 * np.ones(3), np.array(used)),
        gain=None if winner is None else (0.314, Interval(0.2, None)),
        noise=None,
        kept=kept,
    )


def test_a_knee() -> None:
    assert verdict_lines(judgement("knee", winner=1)) == [
        "The knee is at 512/64 (max_num_batched_tokens/max_num_seqs).",
        "ttft_p95 is 180.0 ms of 300.0 allowed (upper bound 290.0).",
        "tpot_p95 is 9.4 ms of 16.0 allowed (upper bound 15.0).",
        "The budget is kept: all upper bounds are within it.",
        (
            "Against the baseline 2048/64: ttft_p95 95.0 → 180.0, tpot_p95 19.6 → 9.4, "
            "itl_p99 58.8 → 28.2, tokens_per_busy_s 1000.0 → 1100.0."
        ),
        "The gain is 0.31 widths of the budget (90 % interval 0.20 to -).",
        ("Moving on to 768/64 would change ttft_p95 by -20%, s busy per 1,000 tokens by +50%."),
        "Moving on to 2048/64 would change ttft_p95 by +10%, tpot_p95 without bound.",
        (
            "Confidence: 512/64 is best in 72% of the resamples, and 512/64 or 768/64 "
            "in 90 % of them; expected loss 0.012 widths of the budget."
        ),
    ]


def test_a_default_that_is_kept() -> None:
    assert verdict_lines(judgement("keep_default", winner=0))[:2] == [
        "Keep what you have: 2048/64 is as good as anything that was tried.",
        "ttft_p95 is 95.0 ms of 300.0 allowed (upper bound 290.0).",
    ]


def test_nothing_feasible() -> None:
    assert verdict_lines(judgement("nothing_feasible", winner=None, nearest=0)) == [
        "Nothing keeps the budget.",
        "Nearest is 2048/64: ttft_p95 95.0 ms of 300.0, tpot_p95 19.6 ms of 16.0.",
        (
            "Loosen the budget (the same command with another --budget judges these trials again "
            "in seconds), lighten the load, or give the model more hardware."
        ),
    ]


def test_nothing_feasible_since_requests_failed() -> None:
    cells = (cell(limits(2048), 95.0, 9.6, failed_requests=1), *CELLS[1:])
    verdict = judgement("nothing_feasible", winner=None, nearest=0, cells=cells)
    assert verdict_lines(verdict)[1] == (
        "Nearest is 2048/64: ttft_p95 95.0 ms of 300.0, tpot_p95 9.6 ms of 16.0, 1 request failed."
    )


def test_nothing_feasible_without_a_budget() -> None:
    cells = (
        cell(limits(2048), 95.0, 19.6, failed_requests=7),
        cell(limits(512), 180.0, 9.4, failed_requests=2),
    )
    verdict = judgement(
        "nothing_feasible", winner=None, nearest=0, cells=cells, budget=Budget(), kept=None
    )
    assert verdict_lines(verdict) == [
        "Requests failed under every candidate.",
        "Fewest failed under 512/64: 2 requests failed.",
        "The engine's log says why: autotune show 0 names it.",
    ]


def test_not_converged() -> None:
    lines = verdict_lines(judgement("not_converged", winner=1))
    assert lines[0] == (
        "Not converged: 512/64 is the best so far, but the study cannot be sure of it."
    )
    assert lines[-1].startswith("Confidence: 512/64 is best in 72% of")
    assert not any(line.startswith("Moving on") for line in lines)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (None, "The budget is met in the sample; a longer window is needed to call it kept."),
        (False, "The budget is met in the sample, but its upper bounds are beyond it."),
    ],
)
def test_a_budget_that_may_not_be_kept(kept: bool | None, said: str) -> None:
    assert said in verdict_lines(judgement("knee", winner=1, kept=kept))


def test_a_bound_that_the_window_is_too_short_for() -> None:
    cells = (CELLS[0], cell(limits(512), 180.0, 9.4, upper=(None, 15.0)), CELLS[2])
    lines = verdict_lines(judgement("knee", winner=1, cells=cells, kept=None))
    assert lines[1] == (
        "ttft_p95 is 180.0 ms of 300.0 allowed (no upper bound, the window is too short)."
    )


def test_a_maximum_that_no_window_bounds() -> None:
    budget = parse_budget("ttft_p95:300 itl_max:90")
    metrics = {**CELLS[1].metrics, "itl_max": 71.0}
    cells = (CELLS[0], replace(CELLS[1], metrics=metrics), CELLS[2])
    lines = verdict_lines(judgement("knee", winner=1, cells=cells, budget=budget, kept=None))
    assert lines[2:4] == [
        "itl_max is 71.0 ms of 90.0 allowed (no upper bound, as no window bounds a maximum).",
        "The budget is met in the sample; a limit on a maximum is never called kept.",
    ]


def test_without_a_budget() -> None:
    lines = verdict_lines(judgement("knee", winner=1, budget=Budget(), kept=None))
    assert lines[1] == (
        "No budget was given, so latencies are weighed against the best that was seen."
    )
    assert "The gain is 0.31 doublings (90 % interval 0.20 to -)." in lines
    assert lines[-1].endswith("expected loss 0.012 doublings.")
    assert not any("of the budget" in line for line in lines)


def test_a_baseline_whose_requests_failed() -> None:
    cells = (cell(limits(2048), 95.0, 9.6, failed_requests=3), *CELLS[1:])
    given = verdict_lines(judgement("knee", winner=1, cells=cells))
    assert "The baseline breaks the budget: 3 requests failed." in given
    free = verdict_lines(judgement("knee", winner=1, cells=cells, budget=Budget(), kept=None))
    assert "The baseline is no alternative: 3 requests failed." in free


def test_one_cell_that_is_best_nearly_always() -> None:
    verdict = judgement("knee", winner=1, probability=(0.0, 0.97, 0.03), knee_set=(1,))
    assert verdict_lines(verdict)[-1] == (
        "Confidence: 512/64 is best in 97% of the resamples; "
        "expected loss 0.012 widths of the budget."
    )


def test_a_front_without_a_knee_and_an_objective_without_a_difference() -> None:
    straight = TradeOff(2, (-0.1, 0.1, 0.0), 1.0)
    lines = verdict_lines(
        judgement("knee", winner=1, trades=(straight, None), used=(True, True, False))
    )
    assert "The front is nearly straight here: no knee stands out." in lines
    assert lines[-1] == (
        "Not counted, since it differs by less than its noise: s busy per 1,000 tokens."
    )


def test_where_the_time_went() -> None:
    timings = {"start_s": 10.4, "warmup_s": None, "replay_s": 20.0, "stop_s": 1.0}
    trials = [record(0, timings=timings), record(1, timings=timings), record(2)]
    assert time_line(trials) == (
        "3 trials took 63 s: engine starts 21 s, warm-up 0 s, replays 40 s, stops 2 s."
    )


def test_a_baseline_beyond_the_budget_is_named_instead_of_a_gain() -> None:
    broken = replace(cell(limits(2048), 310.0, 19.6), feasible=False)
    lines = verdict_lines(judgement("knee", winner=1, cells=(broken, *CELLS[1:])))
    assert (
        "The baseline breaks the budget: ttft_p95 310.0 of 300.0 ms, tpot_p95 19.6 of 16.0 ms."
        in lines
    )
    assert not any(line.startswith("The gain is") for line in lines)


def test_keeping_the_default_names_what_scored_better() -> None:
    lines = verdict_lines(judgement("keep_default", winner=0))
    assert lines[0] == "Keep what you have: 2048/64 is as good as anything that was tried."
    assert (
        "512/64 scored better by 0.31 widths of the budget (90 % interval 0.20 to -), "
        "which is within the noise."
    ) in lines
    assert not any(line.startswith("Confidence") for line in lines)
