"""The exact sentences of one verdict of each kind."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.candidates.lattice import Candidate
from autotune.cli.words import state_line, time_line, verdict_lines
from autotune.study.costs import WORK_COST, Cell, Noise
from autotune.study.judgement import Code, Judgement
from autotune.study.view import StudyView
from objectives.knee import Certainty, Knee, TradeOff
from objectives.limits import Budget, parse_budget
from objectives.score import Scores
from objectives.statistics import Interval
from storage.records import Json, StudyState
from tests.autotune.study.records import limits, record, study_record

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
        scores=Scores(np.zeros(3), np.ones(3), 2 * np.ones(3), np.array(used)),
        gain=None if winner is None else (0.314, Interval(0.2, 0.4)),
        noise=noise,
        too_noisy=too_noisy,
        kept=kept,
    )


UNREPEATED = "No candidate was measured twice, so the noise between replays is not known."
TIGHT = {
    winner: (
        f"That is more than the room left below the limit on {limit}: another replay may break it."
    )
    for winner, limit in ((0, "tpot_p95"), (1, "ttft_p95"))
}
NOISE = Noise(np.array([1.04, 0.02, math.nan]), 3)


def test_a_knee() -> None:
    assert verdict_lines(judgement("knee", winner=1)) == [
        (
            "The knee is at 512/64 (max_num_batched_tokens/max_num_seqs): the best compromise "
            "that was measured."
        ),
        "ttft_p95 is 180.0 ms of 300.0 allowed (with 95 % confidence at most 290.0).",
        "tpot_p95 is 9.4 ms of 16.0 allowed (with 95 % confidence at most 15.0).",
        "The budget is kept: the upper bounds are within it too.",
        (
            "Better than the baseline 2048/64: tpot_p95 19.6 → 9.4 ms (-52 %), "
            "itl_p99 58.8 → 28.2 ms (-52 %), "
            "work 1000 → 1100 tokens per busy second (+10 %)."
        ),
        ("Worse than the baseline 2048/64, which is the price: ttft_p95 95.0 → 180.0 ms (+89 %)."),
        (
            "All in all it gains 31 % of the way from your limits to the best seen "
            "(90 % interval 20 to 40 %)."
        ),
        "Moving on to 768/64: ttft_p95 -20 %, but busy time per token +50 %.",
        "Moving on to 2048/64: only a loss, ttft_p95 +10 %, tpot_p95 without bound.",
        (
            "How sure: in 72% of 300 resamples 512/64 is best, and 512/64 or 768/64 in 90 % of "
            "them."
        ),
        (
            "If it is not the best after all, little is at stake: on average 1.2 % of the way "
            "from your limits to the best seen."
        ),
        UNREPEATED,
        "Next: autotune best --output serve.yaml, then vllm serve --config serve.yaml.",
    ]


def test_a_default_that_is_kept() -> None:
    cells = (cell(limits(2048), 95.0, 9.6, diagnosis=LIGHT), *CELLS[1:])
    assert verdict_lines(judgement("keep_default", winner=0, cells=cells)) == [
        "Keep what you have: 2048/64 is as good as anything that was tried.",
        "ttft_p95 is 95.0 ms of 300.0 allowed (with 95 % confidence at most 290.0).",
        "tpot_p95 is 9.6 ms of 16.0 allowed (with 95 % confidence at most 15.0).",
        "The budget is kept: the upper bounds are within it too.",
        "Neither limit holds 2048/64 back: nothing was chunked.",
        (
            "How sure: in 0% of 300 resamples 2048/64 is best, and 512/64 or 768/64 in 90 % of "
            "them."
        ),
        (
            "512/64 seemed to gain 31 % of the way from your limits to the best seen "
            "(90 % interval 20 to 40 %), which is within the noise."
        ),
        (
            "Keeping it loses 1.2 % of the way from your limits to the best seen on average; up "
            "to 3 % counts as settled."
        ),
        UNREPEATED,
        "Next: nothing to change.",
        (
            "The limits hardly mattered here: to see them matter, replay busier traffic, "
            "such as --window busiest:10m of a longer trace."
        ),
    ]


def test_nothing_feasible() -> None:
    loosened = parse_budget("ttft_p95:300 tpot_p95:20")
    verdict = judgement("nothing_feasible", winner=None, nearest=0, loosened=loosened)
    assert verdict_lines(verdict) == [
        "Nothing keeps the budget.",
        "Nearest is 2048/64: tpot_p95 19.6 ms, over 16.0; ttft_p95 95.0 ms, within 300.0.",
        (
            "How sure: with 95 % confidence tpot_p95 is at least 0.0 ms only, so another replay "
            "of 2048/64 may keep the budget."
        ),
        UNREPEATED,
        "Next: the same command with --trials raised by 8, to search on.",
        (
            "Or with --budget 'ttft_p95:300 tpot_p95:20', which 2048/64 meets: these trials are "
            "judged again, without an engine."
        ),
        "Or lighten the load, or give the model more hardware.",
    ]


def test_nothing_feasible_beyond_doubt() -> None:
    nearest = replace(CELLS[0], intervals={"tpot_p95": [18.2, 21.0]})
    verdict = judgement("nothing_feasible", winner=None, nearest=0, cells=(nearest,))
    assert (
        "How sure: with 95 % confidence tpot_p95 is at least 18.2 ms for 2048/64, still over the "
        "limit."
    ) in verdict_lines(verdict)


def test_why_a_trial_that_met_the_budget_does_not_make_a_candidate_eligible() -> None:
    spoilt = replace(CELLS[0], numbers=(10, 11), met=(11,), feasible=False)
    verdict = judgement("nothing_feasible", winner=None, nearest=1, cells=(spoilt, CELLS[1]))
    assert (
        "2048/64 met the budget in trial 11 only: the mean of its trials 10 and 11 breaks it."
        in verdict_lines(verdict)
    )
    failed = replace(spoilt, failed_requests=2)
    assert (
        "2048/64 met the budget in trial 11 only: 2 requests failed in another of its trials."
        in verdict_lines(judgement("knee", winner=1, cells=(failed, *CELLS[1:])))
    )


@pytest.mark.parametrize(
    ("winner", "said"),
    [
        (
            1,
            "so what 512/64, the best so far, seemed to gain on the baseline may be noise.",
        ),
        (0, "so any other may be better than the baseline 2048/64, the best so far."),
    ],
)
def test_too_noisy_to_tell(winner: int, said: str) -> None:
    verdict = judgement(
        "not_converged", winner=winner, expected_loss=0.383, noise=NOISE, too_noisy=True
    )
    lines = verdict_lines(verdict)
    assert lines[0] == (
        "Not converged: too noisy to tell. Repeats of one candidate differ by a factor of 2.8 in "
        f"ttft_p95, {said}"
    )
    assert lines[-6:-1] == [
        (
            "That leaves too much at stake: on average 38.3 % of the way from your limits to the "
            "best seen; up to 3 % counts as settled."
        ),
        (
            "Repeats of one candidate differ by a factor of 2.8 in ttft_p95 and by 2 % in "
            "tpot_p95 (one standard deviation, from 3 repeats)."
        ),
        TIGHT[winner],
        "Next: a quieter machine, or a longer --window of the trace, either as a new study.",
        "Or the same command with --trials raised by 8: it keeps these trials and adds 8.",
    ]


def test_the_only_candidate_that_meets_the_budget_is_not_called_the_best_of_many() -> None:
    cells = (replace(CELLS[0], feasible=False), CELLS[1], replace(CELLS[2], feasible=False))
    lines = verdict_lines(judgement("knee", winner=1, cells=cells))
    said = [line for line in lines if line.startswith("How sure")]
    assert said == [
        (
            "How sure: 512/64 is the only candidate that meets the budget, so no other was in "
            "question."
        )
    ]


def test_noise_beyond_the_room_that_is_left_below_a_limit() -> None:
    said = (
        "That is more than the room left below the limit on ttft_p95: another replay may break it."
    )
    assert said in verdict_lines(judgement("knee", winner=1, noise=NOISE))
    calm = Noise(np.array([0.01, 0.02, 0.0]), 3)
    assert said not in verdict_lines(judgement("knee", winner=1, noise=calm))


def test_a_loss_just_over_what_counts_as_settled_is_not_rounded_to_it() -> None:
    lines = verdict_lines(judgement("not_converged", winner=1, expected_loss=0.0304))
    assert (
        "That leaves too much at stake: on average 3.040 % of the way from your limits to the "
        "best seen; up to 3 % counts as settled."
    ) in lines


@pytest.mark.parametrize("code", ["knee", "keep_default", "not_converged", "nothing_feasible"])
def test_every_verdict_says_how_sure_it_is(code: Code) -> None:
    winner = {"nothing_feasible": None, "keep_default": 0}.get(code, 1)
    lines = verdict_lines(judgement(code, winner=winner, nearest=None if winner else 0))
    assert sum(line.startswith("How sure: ") for line in lines) == 1


@pytest.mark.parametrize(
    ("state", "last"),
    [
        (
            "running",
            (
                "This is what the trials so far say, and the study has not ended. If it was "
                "killed, the same command goes on from here."
            ),
        ),
        (
            "interrupted",
            "Next: the same command, which goes on from here: the study was cut short.",
        ),
    ],
)
def test_a_study_that_has_not_ended_is_not_to_be_given_more_trials(
    state: StudyState, last: str
) -> None:
    lines = verdict_lines(judgement("not_converged", winner=1, expected_loss=0.051), state=state)
    assert lines[-1] == last
    assert not any("--trials" in line for line in lines)


def test_nothing_feasible_since_requests_failed() -> None:
    cells = (cell(limits(2048), 95.0, 9.6, failed_requests=1), *CELLS[1:])
    verdict = judgement("nothing_feasible", winner=None, nearest=0, cells=cells)
    assert verdict_lines(verdict)[1:] == [
        (
            "Nearest is 2048/64: 1 request failed; ttft_p95 95.0 ms, within 300.0; "
            "tpot_p95 9.6 ms, within 16.0."
        ),
        "The engine's log says why: autotune show 0 names it.",
        "How sure: requests that fail break every budget, whatever the noise.",
        UNREPEATED,
    ]


def test_nothing_feasible_and_nothing_measured_of_a_limit() -> None:
    budget = parse_budget("ttft_p95:300 itl_p99@long:16")
    verdict = judgement("nothing_feasible", winner=None, nearest=0, budget=budget)
    assert verdict_lines(verdict)[1:] == [
        "Nearest is 2048/64: itl_p99@long has no value; ttft_p95 95.0 ms, within 300.0.",
        "How sure: not at all, as nothing has a value that a limit is about.",
        UNREPEATED,
        "Next: the same command with --trials raised by 8, to search on.",
        "Or lighten the load, or give the model more hardware.",
    ]


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
        "How sure: requests that fail break every budget, whatever the noise.",
        UNREPEATED,
    ]


def test_not_converged() -> None:
    lines = verdict_lines(judgement("not_converged", winner=1, expected_loss=0.051))
    assert lines[0] == (
        "Not converged: 512/64 is the best so far, but the study cannot be sure of it."
    )
    assert lines[-5:] == [
        (
            "How sure: in 72% of 300 resamples 512/64 is best, and 512/64 or 768/64 in 90 % of "
            "them."
        ),
        (
            "That leaves too much at stake: on average 5.1 % of the way from your limits to the "
            "best seen; up to 3 % counts as settled."
        ),
        UNREPEATED,
        ("Next: the same command with --trials raised by 8: it keeps these trials and adds 8."),
        (
            "Or take 512/64 now, with autotune best --output serve.yaml: what is at stake is "
            "said above."
        ),
    ]
    assert not any(line.startswith("Moving on") for line in lines)


def test_a_single_candidate() -> None:
    lines = verdict_lines(
        judgement("not_converged", winner=0, cells=CELLS[:1], probability=(1.0,), knee_set=(0,))
    )
    assert lines[0] == "Not converged: 2048/64 is the only candidate that was measured."
    assert "How sure: not at all, as there is nothing to compare it with." in lines
    assert lines[-1] == (
        "Next: the same command with --trials raised by 8: it keeps these trials and adds 8."
    )


def test_which_limit_holds_the_winner_back_and_what_moving_it_did() -> None:
    held = replace(CELLS[1], diagnosis=FULL)
    lines = verdict_lines(judgement("knee", winner=1, cells=(CELLS[0], held, CELLS[2])))
    at = lines.index(
        "What holds 512/64 back: 97% of the prompt tokens were computed in full steps."
    )
    assert lines[at + 1] == (
        "Raising max_num_batched_tokens, as at 768/64: ttft_p95 -17 %, but tpot_p95 +17 %, "
        "busy time per token +10 %."
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
        "ttft_p95 -47 %, but tpot_p95 +109 %, busy time per token +10 %; it breaks the budget."
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
        "do: busy time per token."
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
        "All in all it gains 31 % of the way from your limits to the best seen."
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
