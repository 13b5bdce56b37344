"""The exact sentences on limits, bounds and what may be moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.cli.words import calibration_lines, state_line, time_line, verdict_lines
from autotune.forecast.edges import Edge
from autotune.study.view import StudyView
from objectives.knee import TradeOff
from objectives.limits import Budget, parse_budget
from objectives.statistics import Interval
from tests.autotune.cli.judgements import (
    CELLS,
    FULL,
    cell,
    judgement,
)
from tests.autotune.study.records import limits, record, study_record, with_best


def test_which_limit_holds_the_winner_back_and_what_moving_it_did() -> None:
    held = replace(CELLS[1], diagnosis=FULL)
    lines = verdict_lines(judgement("knee", winner=1, cells=(CELLS[0], held, CELLS[2])))
    at = lines.index(
        "What holds 512/64 back: 97% of the prompt tokens were computed in full steps."
    )
    assert lines[at + 1] == (
        "Raising max_num_batched_tokens, as at 768/64: ttft_p95 -17 %, but tpot_p95 +17 %, "
        "busy time for the same work +10 %."
    )
    assert not any(line.startswith("Moving on to 768/64") for line in lines)


def test_a_limit_that_was_moved_together_with_another() -> None:
    held = replace(CELLS[1], diagnosis=FULL)
    other = replace(CELLS[0], candidate=limits(2048, 32), feasible=False)
    lines = verdict_lines(
        judgement("knee", winner=1, cells=(other, held), trades=(None, None), knee_set=(1,))
    )
    assert (
        "Raising max_num_batched_tokens, as at 2048/32 (with another max_num_seqs too): "
        "ttft_p95 -47 %, but tpot_p95 +109 %, busy time for the same work +10 %; it breaks the "
        "budget."
    ) in lines


def test_a_limit_that_was_never_moved() -> None:
    held = {**FULL, "next_knob": "lower max_num_seqs"}
    cells = (CELLS[0], replace(CELLS[1], diagnosis=held), CELLS[2])
    assert "Lowering max_num_seqs was not measured from there." in verdict_lines(
        judgement("knee", winner=1, cells=cells)
    )


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (None, "The budget is met in this replay, which is too short to call it kept."),
        (False, "The budget is met in this replay, but an upper bound is beyond it."),
    ],
)
def test_a_budget_that_may_not_be_kept(kept: bool | None, said: str) -> None:
    assert said in verdict_lines(judgement("knee", winner=1, kept=kept))


def test_a_bound_beyond_the_budget_has_a_way_out() -> None:
    assert verdict_lines(judgement("knee", winner=1, kept=False))[-1] == (
        "To be surer that the budget is kept, give a longer --window, which is a new study, or "
        "leave more room in --budget."
    )


def test_a_bound_that_the_window_is_too_short_for() -> None:
    cells = (CELLS[0], cell(limits(512), 180.0, 9.4, upper=(None, 15.0)), CELLS[2])
    lines = verdict_lines(judgement("knee", winner=1, cells=cells, kept=None))
    assert lines[1] == (
        "ttft_p95 is 180.0 ms of 300.0 allowed (no upper bound, the window is too short)."
    )
    assert lines[-1] == (
        "To have the budget kept, not only met, give a longer --window: ttft_p95 needs 72 "
        "requests. That is a new study."
    )


def test_a_window_that_is_too_short_for_a_class() -> None:
    budget = parse_budget("ttft_p95:300 ttft_p99@long:900")
    lines = verdict_lines(judgement("knee", winner=1, budget=budget, kept=None))
    assert lines[-1].endswith(
        "ttft_p99@long needs 368 requests of class long. That is a new study."
    )


def test_a_maximum_that_no_window_bounds() -> None:
    budget = parse_budget("ttft_p95:300 itl_max:90")
    metrics = {**CELLS[1].metrics, "itl_max": 71.0}
    cells = (CELLS[0], replace(CELLS[1], metrics=metrics), CELLS[2])
    lines = verdict_lines(judgement("knee", winner=1, cells=cells, budget=budget, kept=None))
    assert lines[2:4] == [
        "itl_max is 71.0 ms of 90.0 allowed (no upper bound, as no window bounds a maximum).",
        "The budget is met in this replay; a limit on a maximum is never called kept.",
    ]
    assert lines[-1].startswith("Next: autotune best")


def test_without_a_budget() -> None:
    lines = verdict_lines(judgement("knee", winner=1, budget=Budget(), kept=None))
    assert lines[1] == (
        "No budget was given, so latencies are weighed against the best that was seen."
    )
    assert (
        "All in all it gains 31 % of the way from twice the best seen to the best seen "
        "(90 % interval 20 to 40 %)."
    ) in lines
    assert lines[-3].endswith(
        "on average 1.2 % of the way from twice the best seen to the best seen."
    )
    assert not any("your limits" in line for line in lines)


def test_a_baseline_whose_requests_failed() -> None:
    cells = (cell(limits(2048), 95.0, 9.6, failed_requests=3), *CELLS[1:])
    given = verdict_lines(judgement("knee", winner=1, cells=cells))
    assert "The baseline breaks the budget: 3 requests failed." in given
    free = verdict_lines(judgement("knee", winner=1, cells=cells, budget=Budget(), kept=None))
    assert "The baseline is no alternative: 3 requests failed." in free


def test_one_cell_that_is_best_nearly_always() -> None:
    verdict = judgement(
        "knee", winner=1, probability=(0.0, 0.97, 0.03), knee_set=(1,), expected_loss=0.0001
    )
    assert verdict_lines(verdict)[-3] == "How sure: in 97% of 300 resamples 512/64 is best."


def test_a_front_without_a_knee_and_an_objective_without_a_difference() -> None:
    straight = TradeOff(2, (-0.1, 0.1, 0.0), 1.0)
    lines = verdict_lines(
        judgement("knee", winner=1, trades=(straight, None), used=(True, True, False))
    )
    assert (
        "No knee stands out: its neighbours gain about as much as they lose, so choose by taste."
    ) in lines
    assert lines[-2] == (
        "Not counted, since those that keep the budget differ in it by less than repeats of one "
        "do: busy time for the same work."
    )
    lines = verdict_lines(
        judgement("knee", winner=1, used=(True, False, True), budget=Budget(), kept=None)
    )
    assert lines[-2] == (
        "Not counted, since candidates differ in it by less than repeats of one do: "
        "tpot_p95 (9.4 to 19.6 ms)."
    )


def test_where_the_time_went() -> None:
    timings = {"start_s": 10.4, "warmup_s": None, "replay_s": 20.0, "stop_s": 1.0}
    trials = [record(0, timings=timings), record(1, timings=timings), record(2)]
    assert time_line(trials) == (
        "3 trials took 63 s: engine starts 21 s, warm-up 0 s, replays 40 s, stops 2 s."
    )
    assert time_line(trials, simulated=True).startswith(
        "3 trials took 63 s of simulated time: engine starts 21 s, "
    )
    night = {**timings, "replay_s": 6000.0}
    assert time_line([record(0, timings=night), record(1, timings=night)]).startswith(
        "2 trials took 3 h 20 min: "
    )


def test_a_baseline_beyond_the_budget_is_named_instead_of_a_gain() -> None:
    broken = replace(cell(limits(2048), 310.0, 19.6), feasible=False)
    lines = verdict_lines(judgement("knee", winner=1, cells=(broken, *CELLS[1:])))
    assert (
        "The baseline breaks the budget: ttft_p95 310.0 of 300.0 ms, tpot_p95 19.6 of 16.0 ms."
        in lines
    )
    assert not any(line.startswith("All in all") for line in lines)


def test_a_gain_without_an_interval_is_said_alone() -> None:
    alone = replace(judgement("knee", winner=1), gain=(0.314, Interval(0.2, None)))
    assert (
        "All in all it gains 31 % of the way from the budget's limits to the best seen."
    ) in verdict_lines(alone)


def test_what_was_infinite_and_what_stayed_alike() -> None:
    lost = cell(limits(2048), float("inf"), 9.41)
    lines = verdict_lines(judgement("knee", winner=1, cells=(lost, *CELLS[1:])))
    at = next(i for i, line in enumerate(lines) if line.startswith("Better than"))
    assert lines[at].startswith("Better than the baseline 2048/64: ttft_p95 inf → 180.0 ms, ")
    assert lines[at + 1] == "As before: tpot_p95 9.4 → 9.4 ms, itl_p99 28.2 → 28.2 ms."


def test_a_study_may_have_more_trials_than_were_asked_for() -> None:
    """Under a looser budget replays count that did not count, and were repeated."""
    rows = tuple(record(number) for number in range(10))
    study = study_record(trials=8)
    assert state_line(StudyView(study, rows[:8], None)) == "Study 'study': running, 8 of 8 trials."
    assert state_line(StudyView(study, rows, None)) == (
        "Study 'study': running, 10 trials. That is more than the 8 asked for, since this budget "
        "counts replays that another did not."
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            (
                "3 step sizes up to 513 tokens; CUDA graphs up to 512 tokens, one token more "
                "takes 15 % longer; quantum 128 tokens; best 612 TFLOP/s"
            ),
        ),
        (
            {"edges": (), "quantum": None},
            (
                "3 step sizes up to 513 tokens; CUDA graphs up to 512 tokens; no quantum stands "
                "out; best 612 TFLOP/s"
            ),
        ),
        (
            {"points": (), "edges": (), "capture_sizes": (), "best_flops_per_s": None},
            "no prefill step; quantum 128 tokens; work is not counted, so tokens are scored",
        ),
    ],
)
def test_a_calibration_in_one_line(changes: dict[str, Any], said: str) -> None:
    calibration = replace(with_best(6.12e14), **changes)
    study = study_record(calibration=calibration)
    assert calibration_lines(study) == [f"Calibration: {said}; the ladders are the plain ones."]
    assert calibration_lines(study_record()) == []


def test_a_calibration_that_moves_rungs_and_was_cut_short() -> None:
    edges = tuple(Edge(size, size + 1, 0.9, 0.1, "tile") for size in (640, 1152, 1280))
    calibration = replace(with_best(6e14), edges=edges, capture_sizes=(8, 40), quantum=None)
    study = study_record(calibration=calibration)
    ladders = {TOKENS: [128, 256, 512, 640, 1024, 1152, 2048], SEQS: [8, 16, 40, 64]}
    study = replace(
        study,
        fingerprint={**study.fingerprint, "ladders": ladders, "off_tile": {TOKENS: [1152]}},
        spec={**study.spec, "calibration": {**study.spec["calibration"], "whole": False}},
    )
    assert calibration_lines(study) == [
        (
            "Calibration: 3 step sizes up to 513 tokens; CUDA graphs up to 40 tokens; edges at "
            "640, 1152 and 1280 tokens; no quantum stands out; best 600 TFLOP/s; rungs made of "
            "it: max_num_batched_tokens 640, max_num_seqs 40; not all of its plan was measured."
        )
    ]
