from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from autotune.candidates.lattice import TOKENS
from autotune.study.judgement import (
    CONVERGED_COST,
    KEEPING_COST,
    Judgement,
    contested,
    judge,
    verdict_json,
)
from objectives.errors import ObjectiveError
from objectives.limits import parse_budget
from storage.records import TrialRecord
from tests.autotune.study.records import Measured, limits, record
from tests.autotune.study.scripted import BASELINE, BUDGET, REQUESTS, Speed, clear_knee

LADDER = (256, 384, 512, 768, 1024, 1536)


def judged(study: Measured) -> Judgement:
    judgement = judge(
        study.trials,
        study.samples.__getitem__,
        budget=study.budget,
        classes=study.classes,
        baseline=BASELINE,
    )
    assert judgement is not None
    return judgement


def searched(*, budget: str = BUDGET) -> Measured:
    """The baseline and six cells that trade TTFT for TPOT."""
    study = Measured(budget=budget)
    for tokens in (2048, *LADDER):
        study.add(limits(tokens), clear_knee(limits(tokens)), seed=tokens)
    return study


def test_a_clear_knee() -> None:
    """640 is better than its neighbours on either side in both latencies."""
    study = searched()
    study.add(limits(640), Speed(100, 7))
    judgement = judged(study)
    assert judgement.code == "knee"
    assert judgement.chosen is not None
    assert judgement.chosen.candidate == limits(640)
    assert judgement.kept is True
    assert judgement.gain is not None
    assert judgement.gain[0] > 0
    assert judgement.certainty is not None
    assert judgement.certainty.expected_opportunity_cost < 0.03


def test_only_feasible_cells_win() -> None:
    judgement = judged(searched())
    assert judgement.chosen is not None
    assert judgement.chosen.feasible
    # The baseline's TPOT and the TTFT of the smallest budget are beyond their limits.
    feasible = {cell.candidate[TOKENS] for cell in judgement.cells if cell.feasible}
    assert feasible == {384, 512, 768, 1024}


def test_a_baseline_as_good_as_any_is_kept() -> None:
    study = Measured(budget="ttft_p95:300 tpot_p95:30")
    study.add(BASELINE, Speed(100, 10))
    study.add(limits(512), Speed(100, 10))
    study.add(limits(1024), Speed(150, 15))
    judgement = judged(study)
    assert judgement.code == "keep_default"
    assert judgement.winner == judgement.baseline == 0


def test_a_gain_within_the_replicate_noise_is_no_gain() -> None:
    study = Measured(budget="ttft_p95:300 tpot_p95:30")
    for speed in (Speed(100, 10), Speed(101, 10.1)):
        study.add(BASELINE, speed)
    study.add(limits(512), Speed(99.8, 9.98))
    judgement = judged(study)
    assert judgement.code == "keep_default"
    assert judgement.certainty is not None
    assert 0 < judgement.certainty.expected_opportunity_cost <= CONVERGED_COST


def test_a_gain_that_is_shown_but_small_is_no_reason_to_change() -> None:
    """Each is measured twice, with hardly any noise."""
    study = Measured(budget="ttft_p95:300 tpot_p95:30")
    for speed in (Speed(100, 10), Speed(100.1, 10.01)) * 2:
        study.add(BASELINE, speed)
    for speed in (Speed(97, 9.7), Speed(97.1, 9.71)):
        study.add(limits(512), speed)
    judgement = judged(study)
    assert judgement.gain is not None
    estimate, bounds = judgement.gain
    assert bounds.low is not None
    assert 0 < bounds.low < CONVERGED_COST
    assert estimate < KEEPING_COST
    assert judgement.code == "keep_default"
    assert contested(judgement) == []


def test_the_knee_the_baseline_and_its_rivals_are_contested_while_nothing_is_settled() -> None:
    study = Measured(budget="ttft_p95:300 tpot_p95:30")
    for slower in (1.0, 1.2):
        study.add(BASELINE, Speed(110 * slower, 11 * slower))
        study.add(limits(512), Speed(100 * slower, 10 * slower))
    study.add(limits(768), Speed(108, 10.8))
    study.add(limits(1024), Speed(290, 29))
    judgement = judged(study)
    assert judgement.chosen is not None
    found = contested(judgement)
    assert found[0] == judgement.chosen.candidate
    assert BASELINE in found
    assert limits(1024) not in found
    assert contested(judged(searched(budget="ttft_p95:1"))) == []


def test_a_candidate_alone_is_not_contested() -> None:
    study = Measured(budget="ttft_p95:300 tpot_p95:30")
    study.add(BASELINE, Speed(100, 10))
    assert contested(judged(study)) == []


def test_one_request_of_one_token_is_judged_without_a_warning() -> None:
    """No cell has time between tokens, so that no ideal of it is finite."""
    study = Measured(budget="ttft_p95:300")
    metrics = {"ttft_p95": 100.0, "tpot_p95": None, "itl_p99": None, "tokens_per_busy_s": 10.0}
    for candidate in (BASELINE, BASELINE, limits(512)):
        trial = study.add(candidate, Speed(100, 10))
        study.trials[-1] = replace(trial, metrics={**(trial.metrics or {}), **metrics})
    assert judged(study).noise is not None


@pytest.mark.parametrize("other", [Speed(105, 10.2), Speed(100, 10), Speed(85, 8.5)])
def test_noise_that_may_hide_a_gain_is_no_reason_to_keep_the_baseline(other: Speed) -> None:
    """Whether it hides all objectives, so that none counts, or just the gain."""
    study = Measured(budget="ttft_p95:300 tpot_p95:30")
    for speed in (Speed(100, 10), Speed(130, 12)):
        study.add(BASELINE, speed)
    study.add(limits(512), other)
    judgement = judged(study)
    assert judgement.code == "not_converged"
    assert judgement.too_noisy
    assert judgement.winner is not None


def test_a_gain_that_is_not_shown_without_repeats_is_not_called_noise() -> None:
    study = Measured(budget="ttft_p50:2000")
    study.add(BASELINE, Speed(1000, 10))
    study.add(limits(512), Speed(1000, 10), seed=3)
    for number in (0, 1):
        arrays = dict(study.samples[number])
        waits_s = np.random.default_rng(number).permutation(np.geomspace(0.05, 20, REQUESTS))
        arrays["first_token_s"] = arrays["scheduled_s"] + waits_s
        arrays["last_token_s"] = arrays["first_token_s"] + 0.03
        study.samples[number] = arrays
    judgement = judged(study)
    assert (judgement.code, judgement.too_noisy) == ("not_converged", False)


def late(study: Measured, number: int, lag_ms: float, *, state: str) -> None:
    trial = study.trials[number]
    failure = "client_bound" if state == "invalid" else None
    study.trials[number] = replace(
        trial,
        state=cast("Any", state),
        failure_class=failure,
        engine={**(trial.engine or {}), "send_lag_p99_ms": lag_ms},
    )


@pytest.mark.parametrize("state", ["complete", "invalid"])
@pytest.mark.parametrize(("budget", "counted"), [("ttft_p95:300", 1), ("ttft_p95:500", 2)])
def test_what_counts_follows_from_the_budget_and_not_from_the_state(
    state: str, budget: str, counted: int
) -> None:
    study = Measured(budget=budget)
    study.add(BASELINE, Speed(100, 10))
    study.add(limits(512), Speed(90, 9))
    late(study, 1, 40.0, state=state)
    assert len(judged(study).cells) == counted


def test_a_budget_that_is_proposed_is_kept_by_the_candidate_it_is_proposed_for() -> None:
    """At 850 ms the late second trial would count, and make the mean 1,020 ms."""
    study = Measured(budget="ttft_p95:500")
    study.add(BASELINE, Speed(4000, 10))
    study.add(limits(512), Speed(840, 10), seed=1)
    study.add(limits(512), Speed(1200, 10), seed=1)
    late(study, 2, 70.0, state="invalid")
    judgement = judged(study)
    assert judgement.code == "nothing_feasible"
    assert judgement.nearest == 1
    assert judgement.cells[1].numbers == (1,)
    assert judgement.loosened is not None
    assert judgement.loosened.limits[0].limit_ms == pytest.approx(1000, rel=0.1)
    study.budget = judgement.loosened
    after = judged(study)
    assert after.chosen is not None
    assert after.chosen.candidate == limits(512)
    assert after.chosen.numbers == (1, 2)


def test_no_budget_helps_where_requests_failed() -> None:
    study = Measured(budget="ttft_p50:50")
    study.add(BASELINE, Speed(250, 10, failed=1))
    assert judged(study).loosened is None


def test_trials_that_met_a_budget_which_their_candidate_breaks_are_known() -> None:
    study = Measured(budget="ttft_p95:150")
    study.add(BASELINE, Speed(100, 10))
    study.add(BASELINE, Speed(900, 10))
    (cell,) = judged(study).cells
    assert (cell.feasible, cell.met) == (False, (0,))


def test_a_gain_beyond_the_replicate_noise_counts() -> None:
    study = Measured(budget="ttft_p95:300 tpot_p95:30")
    for speed in (Speed(200, 20), Speed(201, 20.1)):
        study.add(BASELINE, speed)
    study.add(limits(512), Speed(100, 10))
    judgement = judged(study)
    assert judgement.code == "knee"
    assert judgement.noise is not None
    assert judgement.noise.sigma[0] == pytest.approx(0.01, abs=0.01)


def test_nothing_feasible_names_the_cell_that_misses_by_the_least() -> None:
    study = Measured(budget="ttft_p95:50")
    study.add(BASELINE, Speed(100, 10))
    study.add(limits(512), Speed(60, 99))
    study.add(limits(1024), Speed(20, 10, failed=1))
    judgement = judged(study)
    assert judgement.code == "nothing_feasible"
    assert judgement.winner is None
    assert judgement.chosen is None
    assert judgement.nearest == 1
    assert judgement.kept is None


def test_a_study_too_noisy_to_tell_has_not_converged() -> None:
    """Two cells of nearly the same TTFT median, whose requests wait for 0.05 to 20 s."""
    study = Measured(budget="ttft_p50:2000")
    study.add(BASELINE, Speed(5000, 10))
    for number in (1, 2):
        speed = Speed(1000 + number, 10)
        study.add(limits(512 * number), speed, seed=3)
        arrays = dict(study.samples[number])
        waits_s = np.random.default_rng(number).permutation(np.geomspace(0.05, 20, REQUESTS))
        arrays["first_token_s"] = arrays["scheduled_s"] + waits_s
        arrays["last_token_s"] = arrays["first_token_s"] + 0.03
        study.samples[number] = arrays
    judgement = judged(study)
    assert judgement.code == "not_converged"
    assert judgement.chosen is not None
    assert judgement.certainty is not None
    assert judgement.certainty.expected_opportunity_cost > 0.03


def test_relative_limits_are_resolved_by_the_first_baseline() -> None:
    study = Measured(budget="tpot_p95:0.6x")
    study.add(BASELINE, Speed(100, 20))
    study.add(limits(512), Speed(100, 10))
    study.add(BASELINE, Speed(100, 40))
    judgement = judged(study)
    (limit,) = judgement.budget.limits
    assert limit.limit_ms == pytest.approx(12, rel=0.03)
    assert [cell.feasible for cell in judgement.cells] == [False, True]


def test_a_relative_limit_without_a_baseline_cannot_be_judged() -> None:
    study = Measured(budget="tpot_p95:0.6x")
    study.add(limits(512), Speed(100, 10))
    with pytest.raises(ObjectiveError, match="the baseline has no tpot_p95"):
        judged(study)


@pytest.mark.parametrize("budget", ["", "tpot_p95:0.6x"])
def test_before_the_first_result_there_is_no_judgement(budget: str) -> None:
    trials = [record(0, state="failed"), record(1, state="infeasible")]
    found = judge(
        trials,
        lambda _: {},
        budget=parse_budget(budget),
        classes=(),
        baseline=BASELINE,
    )
    assert found is None


def test_limits_on_a_class_decide() -> None:
    study = Measured(budget="ttft_p95@short:300", classes="short:0-500 long:500-")
    study.add(BASELINE, Speed(400, 10))
    study.add(limits(512), Speed(200, 10))
    judgement = judged(study)
    assert judgement.names[0] == "ttft_p95@short"
    assert judgement.code == "knee"
    assert judgement.winner == 1


def test_a_window_that_is_long_enough_says_whether_the_budget_is_kept() -> None:
    """p50 has an upper bound from few requests."""
    study = Measured(budget="ttft_p50:300")
    study.add(BASELINE, Speed(1000, 10))
    study.add(limits(512), Speed(200, 10))
    assert judged(study).kept is True
    study = Measured(budget="ttft_p50:200")
    study.add(BASELINE, Speed(1000, 10))
    study.add(limits(512), Speed(199.9, 10))
    assert judged(study).kept is False


def test_a_failed_request_excludes_a_cell() -> None:
    study = Measured(budget="ttft_p50:300")
    study.add(BASELINE, Speed(250, 10))
    study.add(limits(512), Speed(100, 10, failed=1))
    judgement = judged(study)
    assert judgement.winner == 0
    assert judgement.cells[1].failed_requests == 1


def test_without_a_baseline_there_is_no_gain() -> None:
    study = Measured(budget=BUDGET)
    study.add(limits(512), Speed(100, 10))
    study.add(limits(1024), Speed(200, 30))
    judgement = judged(study)
    assert judgement.baseline is None
    assert judgement.gain is None
    assert judgement.code == "knee"


def test_one_candidate_alone_decides_nothing() -> None:
    study = Measured(budget=BUDGET)
    study.add(BASELINE, Speed(100, 10))
    assert judged(study).code == "not_converged"


def cut(number: int, tpot_ms: float) -> TrialRecord:
    """A replay that was cut short, with what was seen of it."""
    seen = {"bounds": {"tpot_p95": tpot_ms}, "classes": ""}
    engine = {"censored": seen, "send_lag_p99_ms": 0.1}
    return record(number, limits(256 * number), state="infeasible", engine=engine)


@pytest.mark.parametrize(("others", "code"), [(3, "not_converged"), (4, "keep_default")])
def test_a_baseline_that_alone_keeps_the_budget_is_kept_once_enough_others_broke_it(
    others: int, code: str
) -> None:
    study = Measured(budget=BUDGET)
    study.add(BASELINE, Speed(100, 10))
    limit_ms = 16
    study.add(limits(9999), Speed(100, 1.2 * limit_ms), fidelity="live")
    study.trials += [cut(number, 1.1 * limit_ms) for number in range(2, others + 1)]
    judgement = judged(study)
    assert judgement.code == code
    assert judgement.winner == judgement.baseline == 0


def test_what_was_cut_short_within_this_budget_did_not_break_it() -> None:
    study = Measured(budget=BUDGET)
    study.add(BASELINE, Speed(100, 10))
    study.trials += [cut(number, 1.0) for number in range(1, 9)]
    assert judged(study).code == "not_converged"


def test_the_verdict_is_plain_json() -> None:
    verdict = verdict_json(judged(searched()))
    assert json.loads(json.dumps(verdict, allow_nan=False)) == verdict
    assert set(verdict) == {
        "code", "candidate", "trials", "kept", "probability", "knee_set",
        "expected_opportunity_cost", "regret_bound", "gain", "objectives_used", "noise",
        "pronounced", "nearest", "unconfirmed", "aa", "drift", "live_against_restart",
    }  # fmt: skip
    assert 0 < verdict["probability"] <= 1
    assert verdict["candidate"] in verdict["knee_set"]
    assert verdict["noise"] is None
    assert verdict["unconfirmed"] is None
    assert (verdict["aa"], verdict["drift"], verdict["live_against_restart"]) == ({}, {}, [])


def test_the_verdict_of_nothing_feasible() -> None:
    study = Measured(budget="ttft_p95:50")
    study.add(BASELINE, Speed(100, 10))
    study.add(BASELINE, Speed(110, 10))
    verdict = verdict_json(judged(study))
    assert verdict["code"] == "nothing_feasible"
    assert verdict["candidate"] is None
    assert verdict["nearest"] == BASELINE
    assert verdict["trials"] == []
    assert verdict["gain"] is None
    assert verdict["noise"]["ttft_p95"] == pytest.approx(math.log(1.1) / math.sqrt(2), abs=0.01)
