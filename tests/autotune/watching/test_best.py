from __future__ import annotations

from dataclasses import replace

from autotune.watching.best import best_json, finite, unconfirmed_json
from objectives.limits import Budget
from tests.autotune.cli.judgements import CELLS, judgement
from tests.autotune.study.records import limits


def test_the_winner_has_the_metrics_of_the_budget_and_its_gain() -> None:
    assert best_json(judgement("knee", winner=1)) == {
        "candidate": limits(512),
        "trials": [0],
        "metrics": {"ttft_p95": 180.0, "tpot_p95": 9.4},
        "gain": {"score": 0.314, "low": 0.2, "high": 0.4},
        "verdict": "knee",
    }


def test_a_baseline_that_is_kept_gains_nothing_over_itself() -> None:
    best = best_json(judgement("keep_default", winner=0))
    assert best is not None
    assert (best["candidate"], best["gain"]) == (limits(2048), None)


def test_without_a_gain_there_is_none() -> None:
    best = best_json(replace(judgement("knee", winner=1), gain=None))
    assert best is not None
    assert best["gain"] is None


def test_without_a_budget_the_objectives_are_told() -> None:
    best = best_json(judgement("knee", winner=1, budget=Budget(())))
    assert best is not None
    assert list(best["metrics"]) == ["ttft_p95", "tpot_p95", "tokens_per_busy_s"]


def test_nothing_that_breaks_the_budget_is_best() -> None:
    found = judgement("nothing_feasible", winner=None, nearest=2)
    assert best_json(found) is None
    assert unconfirmed_json(found) is None


def test_a_better_one_that_no_restart_has_measured_is_told_apart() -> None:
    found = judgement("not_converged", winner=1, unconfirmed=2)
    unconfirmed = unconfirmed_json(found)
    assert unconfirmed == {
        "candidate": dict(CELLS[2].candidate),
        "trials": [0],
        "metrics": {"ttft_p95": 150.0, "tpot_p95": 11.0},
    }


def test_what_json_cannot_hold_is_missing() -> None:
    assert [finite(each) for each in (1.5, float("inf"), float("nan"), None)] == [
        1.5, None, None, None,
    ]  # fmt: skip
