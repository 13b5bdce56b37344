"""The exact sentences of one verdict of each kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cli.advice import next_lines
from autotune.cli.words import verdict_lines
from autotune.study.costs import Noise
from autotune.study.judgement import Code
from objectives.limits import Budget, parse_budget
from storage.records import StudyState
from tests.autotune.cli.judgements import (
    BUDGET,
    CELLS,
    LIGHT,
    NOISE,
    TIGHT,
    UNREPEATED,
    cell,
    judgement,
)
from tests.autotune.study.records import limits, record


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
            "All in all it gains 31 % of the way from the budget's limits to the best seen "
            "(90 % interval 20 to 40 %)."
        ),
        "Moving on to 768/64: ttft_p95 -20 %, but busy time for the same work +50 %.",
        "Moving on to 2048/64: only a loss, ttft_p95 +10 %, tpot_p95 without bound.",
        (
            "How sure: in 72% of 300 resamples 512/64 is best, and 512/64 or 768/64 in 90 % of "
            "them."
        ),
        (
            "If it is not the best after all, little is at stake: on average 1.2 % of the way "
            "from the budget's limits to the best seen."
        ),
        UNREPEATED,
        "Next: autotune best --output serve.yaml, then vllm serve --config serve.yaml.",
    ]


@pytest.mark.parametrize(
    ("cap", "peak", "said"), [(16, 11, True), (16, 16, False), (64, 11, False), (16, None, False)]
)
def test_a_smaller_cap_that_was_never_reached_is_no_merit(
    cap: int, peak: int | None, said: bool
) -> None:
    chosen = cell(limits(512, cap), 180.0, 9.4, rate=1100, peak_running=peak)
    lines = verdict_lines(judgement("knee", winner=1, cells=(CELLS[0], chosen, CELLS[2])))
    line = (
        "At most 11 requests ran at once, so that max_num_seqs made no difference here: 64 as "
        "before does the same, and leaves room for more traffic."
    )
    assert (line in lines) is said


def test_a_default_that_is_kept() -> None:
    cells = (cell(limits(2048), 95.0, 9.6, diagnosis=LIGHT), *CELLS[1:])
    assert verdict_lines(judgement("keep_default", winner=0, cells=cells)) == [
        "Keep what you have: nothing that was tried is shown to be worth changing 2048/64.",
        "ttft_p95 is 95.0 ms of 300.0 allowed (with 95 % confidence at most 290.0).",
        "tpot_p95 is 9.6 ms of 16.0 allowed (with 95 % confidence at most 15.0).",
        "The budget is kept: the upper bounds are within it too.",
        "Neither limit holds 2048/64 back: nothing was chunked.",
        (
            "How sure: in 0% of 300 resamples 2048/64 is best, and 512/64 or 768/64 in 90 % of "
            "them."
        ),
        (
            "512/64 seemed to gain 31 % of the way from the budget's limits to the best seen "
            "(90 % interval 20 to 40 %), which is too little to change for."
        ),
        (
            "Keeping it loses 1.2 % of the way from the budget's limits to the best seen on "
            "average; up to 6 % is no reason to change."
        ),
        UNREPEATED,
        "Next: nothing to change.",
        (
            "The limits hardly mattered here: to see them matter, replay more traffic as a new "
            "study, such as --load 2 or a busier --window."
        ),
    ]


@pytest.mark.parametrize("light", [(0, 1, 2), (0, 1), (1, 2)])
def test_traffic_that_is_too_light_to_tell_candidates_apart(light: tuple[int, ...]) -> None:
    cells = [replace(c, diagnosis=LIGHT) if n in light else c for n, c in enumerate(CELLS)]
    verdict = judgement("not_converged", winner=1, expected_loss=0.2, cells=tuple(cells))
    lines = verdict_lines(verdict)
    said = (
        "The traffic is too light to tell candidates apart: of the baseline and those that may be "
        "best, none was ever held up by its limits. Next: replay more traffic as a new study, "
        "such as --load 2 or a busier --window."
    )
    assert (said in lines) == (len(light) == len(CELLS))
    start = "Or" if said in lines else "Next:"
    assert f"{start} the same command with --trials raised by 8: it keeps these trials" in "".join(
        lines
    )


def test_nothing_feasible() -> None:
    loosened = parse_budget("ttft_p95:300 tpot_p95:20")
    verdict = judgement("nothing_feasible", winner=None, nearest=0, loosened=loosened)
    assert verdict_lines(verdict) == [
        "Nothing keeps the budget.",
        "Nearest is 2048/64: tpot_p95 19.6 ms, over 16.0; ttft_p95 95.0 ms, within 300.0.",
        (
            "How sure: with 95 % confidence tpot_p95 is at least 0.0 ms, which is within "
            "the limit, so another replay of 2048/64 may keep the budget."
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
            "That leaves too much at stake: on average 38.3 % of the way from the budget's limits "
            "to the best seen; up to 3 % counts as settled."
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
        "That leaves too much at stake: on average 3.040 % of the way from the budget's limits "
        "to the best seen; up to 3 % counts as settled."
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
            "That leaves too much at stake: on average 5.1 % of the way from the budget's limits "
            "to the best seen; up to 3 % counts as settled."
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


@pytest.mark.parametrize(("finished", "ended_early"), [(9, True), (12, False)])
def test_no_more_trials_are_proposed_where_they_would_not_be_used(
    finished: int, ended_early: bool
) -> None:
    trials = [record(number, limits(512)) for number in range(finished)]
    for found in (
        judgement("not_converged", winner=1),
        replace(judgement("nothing_feasible", winner=None), nearest=1, loosened=BUDGET),
    ):
        lines = next_lines(found, trials=trials, total=12)
        raised = any("--trials raised by 8" in line for line in lines)
        assert raised is not ended_early
        assert (
            any(line.startswith("More --trials would add none") for line in lines) is ended_early
        )
        assert any(line.startswith("Next: ") for line in lines)
