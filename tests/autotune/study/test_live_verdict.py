"""Verdicts over studies in which some trials are live."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from autotune.candidates.lattice import Candidate
from autotune.study.judgement import CONVERGED_COST, finalists, judge, rivals, verdict_json
from storage.records import TrialRecord
from tests.autotune.study.records import Measured, limits, record
from tests.autotune.study.scripted import BASELINE, Speed
from tests.autotune.study.test_judgement import judged

BUDGET = "ttft_p95:300 tpot_p95:30"
A, B, C = limits(512), limits(768), limits(1024)
SLOW, GOOD, FAIR = Speed(200, 20), Speed(100, 10), Speed(120, 12)


class Study(Measured):
    """A study with a restarted baseline and one sentinel, alike unless told otherwise."""

    def __init__(
        self, budget: str = BUDGET, *, baseline: Speed = SLOW, sentinel: Speed | None = None
    ) -> None:
        super().__init__(budget=budget)
        self.restart(BASELINE, baseline, phase="baseline")
        self.live(BASELINE, sentinel or baseline, phase="sentinel")

    def restart(
        self, candidate: Candidate, speed: Speed, *, phase: str = "confirm"
    ) -> TrialRecord:
        return self.add(candidate, speed, phase=phase)

    def live(self, candidate: Candidate, speed: Speed, *, phase: str = "search") -> TrialRecord:
        return self.add(candidate, speed, phase=phase, fidelity="live")


def test_what_was_measured_live_only_does_not_win() -> None:
    study = Study()
    study.live(A, GOOD)
    study.live(B, FAIR)
    found = judged(study)
    assert found.code == "not_converged"
    assert found.chosen is not None
    assert found.chosen.candidate == BASELINE
    assert found.unconfirmed is not None
    assert found.cells[found.unconfirmed].candidate == A
    assert [cell.fidelity for cell in found.cells] == ["restart", "live", "live"]
    assert found.knee is not None
    assert found.knee.front.tolist() == [False, True, False]
    assert verdict_json(found)["unconfirmed"] == A


def test_a_restart_makes_it_win() -> None:
    study = Study()
    study.live(A, GOOD)
    study.live(B, FAIR)
    study.restart(A, GOOD)
    study.restart(BASELINE, SLOW)
    found = judged(study)
    assert (found.code, found.unconfirmed) == ("knee", None)
    assert found.chosen is not None
    assert (found.chosen.numbers, found.chosen.live_numbers) == ((4,), (2,))
    assert verdict_json(found)["trials"] == [4]


def test_where_no_restart_keeps_the_budget_there_is_nothing_to_deploy_yet() -> None:
    study = Study("ttft_p95:150")
    study.live(A, GOOD)
    found = judged(study)
    assert (found.code, found.winner, found.nearest) == ("not_converged", None, None)
    assert found.unconfirmed == 1
    assert verdict_json(found)["candidate"] is None


def test_nothing_feasible_counts_live_trials_too() -> None:
    study = Study("ttft_p95:110")
    study.live(A, FAIR)
    found = judged(study)
    assert (found.code, found.unconfirmed) == ("nothing_feasible", None)
    assert found.nearest == 1
    assert found.loosened is not None


@pytest.mark.parametrize(("speed", "confirmed"), [(Speed(99, 9.9), True), (GOOD, False)])
def test_a_live_cell_that_is_clearly_better_takes_the_verdict_back(
    speed: Speed, confirmed: bool
) -> None:
    winner = GOOD if confirmed else FAIR
    study = Study()
    study.live(A, winner)
    study.live(C, speed)
    study.restart(A, winner)
    study.restart(BASELINE, SLOW)
    found = judged(study)
    assert (found.code == "knee") == confirmed
    assert found.unconfirmed == (None if confirmed else 2)
    assert found.chosen is not None
    assert found.chosen.candidate == A
    gap = found.scores.values[1] - found.scores.values[2]
    assert (gap <= CONVERGED_COST) == confirmed


def test_a_live_rival_that_is_as_good_halves_the_probability() -> None:
    study = Study()
    study.live(A, GOOD)
    study.live(B, Speed(101, 9.9))
    study.restart(A, GOOD)
    study.restart(BASELINE, SLOW)
    study.restart(BASELINE, Speed(202, 20.2))
    found = judged(study)
    assert found.certainty is not None
    assert found.code == "knee"
    assert 0.2 < found.certainty.probability[1] < 0.8
    assert found.certainty.probability.sum() == pytest.approx(1)
    assert 0 < found.certainty.expected_opportunity_cost < CONVERGED_COST
    assert rivals(found) == [B]
    verdict = verdict_json(found)
    assert {tuple(each.values()) for each in verdict["knee_set"]} == {(512, 64), (768, 64)}


def test_a_live_cell_without_which_the_winner_would_be_settled_unsettles_it() -> None:
    """B seems as good as A, and repeats of one candidate differ by a fifth."""
    study = Study()
    study.live(A, GOOD)
    study.live(B, GOOD)
    study.restart(A, GOOD)
    for slower in (1.4, 1.0, 1.4):
        study.restart(BASELINE, Speed(200 * slower, 20 * slower))
    found = judged(study)
    assert found.certainty is not None
    assert found.certainty.expected_opportunity_cost > CONVERGED_COST
    assert (found.code, found.unconfirmed) == ("not_converged", 2)
    assert rivals(found) == [B]


def test_where_only_one_meets_the_budget_nobody_is_its_rival() -> None:
    study = Study("ttft_p95:150")
    study.live(A, GOOD)
    study.live(B, SLOW)
    study.restart(A, GOOD)
    found = judged(study)
    assert found.certainty is not None
    assert found.certainty.probability[1] == 1
    assert rivals(found) == []


def test_what_live_trials_flatter_everybody_by_is_no_advantage() -> None:
    """Restarts are a fifth slower, so that B live beats A restarted, though not A live."""
    study = Study(baseline=Speed(240, 24), sentinel=SLOW)
    study.live(A, GOOD)
    study.live(B, Speed(101, 10.1))
    study.restart(A, FAIR)
    study.restart(BASELINE, Speed(240, 24))
    found = judged(study)
    assert found.scores.values[1] - found.scores.values[2] > CONVERGED_COST
    assert (found.code, found.unconfirmed) == ("knee", None)


def test_sentinels_are_no_figures_of_the_baseline() -> None:
    study = Study()
    study.live(BASELINE, GOOD, phase="sentinel")
    found = judged(study)
    assert found.cells[0].numbers == (0,)
    assert found.cells[0].live_numbers == (1, 2)
    assert found.cells[0].metrics["ttft_p95"] == pytest.approx(200, rel=0.05)
    assert found.noise is not None
    assert found.noise.degrees == 1
    assert found.noise.sigma[0] > 0.3


def test_relative_limits_are_those_of_the_restart() -> None:
    study = Measured(budget="ttft_p95:0.9x")
    study.add(BASELINE, GOOD, phase="sentinel", fidelity="live")
    study.add(BASELINE, SLOW, phase="baseline")
    found = judged(study)
    (limit,) = found.budget.limits
    assert limit.limit_ms == pytest.approx(180, rel=0.05)


def test_sentinels_alone_are_no_result() -> None:
    study = Measured(budget=BUDGET)
    study.add(BASELINE, GOOD, phase="sentinel", fidelity="live")
    args = {"budget": study.budget, "classes": (), "baseline": BASELINE}
    assert judge(study.trials, study.samples.__getitem__, **args) is None  # type: ignore[arg-type]


def test_who_fails_by_a_restart_is_out_whatever_its_live_trials_say() -> None:
    study = Study()
    study.live(A, GOOD)
    study.live(B, FAIR)
    study.trials.append(record(4, A, state="infeasible", failure_class="oom_start"))
    found = judged(study)
    assert [cell.candidate for cell in found.cells] == [BASELINE, B]
    assert finalists(found) == [B]


def test_sentinels_of_a_baseline_that_failed_once_still_count() -> None:
    study = Study()
    study.trials.append(record(2, state="infeasible", failure_class="oom_run", phase="confirm"))
    assert judged(study).cells[0].live_numbers == (1,)


def test_finalists_come_by_score_and_without_the_baseline() -> None:
    study = Study(baseline=Speed(90, 9))
    study.live(A, SLOW)
    study.live(B, GOOD)
    study.live(C, Speed(400, 10))
    study.restart(limits(256), FAIR)
    assert finalists(judged(study)) == [B, limits(256), A]


def test_a_verdict_over_both_fidelities_is_plain_json() -> None:
    study = Study()
    study.live(A, GOOD)
    study.restart(A, FAIR)
    study.restart(BASELINE, SLOW)
    study.live(BASELINE, SLOW, phase="sentinel")
    verdict = verdict_json(judged(study))
    assert json.loads(json.dumps(verdict, allow_nan=False)) == verdict
    assert set(verdict["aa"]) == {"ttft_p95", "tpot_p95", "tokens_per_busy_s"}
    assert verdict["aa"]["ttft_p95"]["trials"] == 2
    base, own = verdict["live_against_restart"]
    assert (base["candidate"], base["restarts"], base["lives"]) == (BASELINE, [0, 4], [1, 5])
    assert own["differences"]["ttft_p95"]["change"] == pytest.approx(100 / 120 - 1, abs=0.02)


def test_an_infinite_live_cost_shifts_nothing() -> None:
    study = Study()
    study.live(A, replace(GOOD, failed=10))
    study.restart(A, GOOD)
    study.restart(BASELINE, SLOW)
    study.live(B, GOOD)
    found = judged(study)
    assert found.code in ("knee", "not_converged")
    assert all(
        math.isfinite(d["change"])
        for each in verdict_json(found)["live_against_restart"]
        for d in each["differences"].values()
    )
