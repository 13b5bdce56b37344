"""What is said of replays of held-out traffic, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.candidates.lattice import Candidate
from autotune.cli.holdout_words import NOTHING, holdout_words
from autotune.cli.words import study_verdict
from autotune.study.held import HeldPart, HeldReplay, HeldResult
from autotune.study.judgement import Judgement
from autotune.study.view import StudyView, provenance, shown_verdict
from objectives.limits import Budget
from tests.autotune.cli.judgements import CELLS, judgement
from tests.autotune.study.records import limits, study_record

BASE, WINNER = limits(2048), limits(512)
THERE = "n the last 20 % of the window, which nothing was chosen on (412 requests)"
FOUND = judgement("knee", winner=1)


def result(candidate: Candidate, *values: tuple[float, float], failed: int = 0) -> HeldResult:
    replays = [
        HeldReplay({"ttft_p95": ttft_ms, "tpot_p95": tpot_ms}, {}, failed)
        for ttft_ms, tpot_ms in values
    ]
    return HeldResult(candidate, tuple(replays))


def view_of(
    *results: HeldResult, found: Judgement = FOUND, budget: str = "ttft_p95:300 tpot_p95:16"
) -> StudyView:
    study = study_record(budget=budget)
    part = HeldPart("20%", "abc", 412, 720.0, "", 4, results)
    spec = {**study.spec, "holdout": part.to_json()}
    return StudyView(replace(study, spec=spec, state="finished"), (), found)


def first(view: StudyView) -> list[str]:
    return list(holdout_words(view, command="the same command").first)


def then(view: StudyView) -> list[str]:
    words = holdout_words(view, command="the same command")
    assert words.first == ()
    return list(words.then)


GOOD = result(WINNER, (200.0, 10.0), (200.0, 10.0))
BAD = result(WINNER, (200.0, 18.0), (200.0, 18.0))
BROKEN_BASE = result(BASE, (90.0, 20.0), (90.0, 20.0))


def test_a_budget_that_is_met_stands_among_the_reasons() -> None:
    view = view_of(GOOD, BROKEN_BASE)
    said = (
        f"O{THERE}: ttft_p95 200.0 ms of 300.0 allowed: met (baseline 90.0: met); "
        "tpot_p95 10.0 ms of 16.0 allowed: met (baseline 20.0: broken)."
    )
    assert then(view) == [said]
    lines = study_verdict(view)
    assert lines[0].startswith("The knee is at 512/64")
    assert lines.index(said) < next(n for n, each in enumerate(lines) if each.startswith("Next:"))


@pytest.mark.parametrize(("budget", "few"), [("ttft_p95:300 tpot_p99:16", True), ("", False)])
def test_too_few_requests_for_a_bound_are_named(budget: str, few: bool) -> None:
    own = replace(GOOD.replays[0], metrics={"ttft_p95": 200.0, "tpot_p95": 9.0, "tpot_p99": 9.0})
    part = HeldPart("20%", "abc", 90, 60.0, "", 4, (HeldResult(WINNER, (own, own)),))
    study = study_record(budget=budget)
    study = replace(study, spec={**study.spec, "holdout": part.to_json()})
    said = "So few requests give no upper bound there: tpot_p99 needs 368."
    assert then(StudyView(study, (), FOUND))[1:] == ([said] if few else [])


def test_a_limit_that_is_broken_there_is_said_first() -> None:
    view = view_of(BAD, BROKEN_BASE)
    said = [
        (
            f"Not confirmed o{THERE}: tpot_p95 18.0 ms of 16.0 allowed: broken (baseline 20.0: "
            "broken); ttft_p95 200.0 ms of 300.0 allowed: met (baseline 90.0: met)."
        ),
        "The baseline breaks it there as well: that traffic is harder, whatever is chosen.",
    ]
    assert first(view) == said
    assert study_verdict(view)[:2] == said
    shown = shown_verdict(view)
    assert shown is not None
    assert (shown["code"], shown["holdout"]["met"]) == ("knee", False)


def test_a_baseline_that_keeps_it_there_is_named() -> None:
    view = view_of(BAD, result(BASE, (90.0, 12.0)))
    assert first(view)[1] == (
        "The baseline keeps the budget there: stay with it, or tune on a longer --window."
    )


def test_a_baseline_that_wins_is_compared_with_nobody() -> None:
    kept = judgement("keep_default", winner=0)
    assert first(view_of(BROKEN_BASE, found=kept)) == [
        (
            f"Not confirmed o{THERE}: tpot_p95 20.0 ms of 16.0 allowed: broken; "
            "ttft_p95 90.0 ms of 300.0 allowed: met."
        ),
        "That is your baseline: loosen --budget, lighten the load, or give more hardware.",
    ]


def test_requests_that_failed_come_first() -> None:
    view = view_of(result(WINNER, (200.0, 10.0), failed=1), BROKEN_BASE)
    assert first(view)[0].startswith(
        f"Not confirmed o{THERE.removesuffix(')')}, replayed once): 1 request failed; ttft_p95"
    )


def test_without_a_budget_the_latencies_stand_there() -> None:
    view = view_of(GOOD, found=replace(FOUND, budget=Budget(())), budget="")
    assert then(view) == [
        (
            f"O{THERE}: ttft_p95 200.0 ms (baseline not measured); tpot_p95 10.0 ms (baseline not "
            "measured)."
        )
    ]


@pytest.mark.parametrize(
    ("failure", "at_first", "said"),
    [
        (None, False, f"Not yet confirmed o{THERE}: the same command does that."),
        (
            {"class": "slow_spell", "evidence": "1.3 times as long"},
            False,
            (
                f"Not confirmed o{THERE}: 512/64 could not be measured there: slow_spell, 1.3 "
                "times as long; the same command tries again."
            ),
        ),
        (
            {"class": "oom_run", "evidence": "out of memory"},
            True,
            f"Not confirmed o{THERE}: 512/64 could not be measured there: oom_run, out of memory.",
        ),
    ],
)
def test_a_winner_that_was_not_measured_there(
    failure: dict[str, str] | None, at_first: bool, said: str
) -> None:
    view = view_of(HeldResult(WINNER, (), failure), BROKEN_BASE)
    assert (first(view) if at_first else then(view)) == [said]


def test_nothing_is_said_without_a_winner_or_a_holdout() -> None:
    none = judgement("nothing_feasible", winner=None, nearest=0)
    assert holdout_words(view_of(found=none), command="") == NOTHING
    assert (shown_verdict(view_of(found=none)) or {})["holdout"] is None
    plain = StudyView(study_record(), (), FOUND)
    assert holdout_words(plain, command="") == NOTHING
    assert "holdout" not in (shown_verdict(plain) or {})


def test_an_export_says_whether_it_was_confirmed() -> None:
    told = provenance(view_of(BAD, BROKEN_BASE), CELLS[1])
    assert (told["holdout"], told["holdout_requests"], told["holdout_met"]) == ("20%", 412, False)
    unknown = provenance(view_of(BAD, BROKEN_BASE), CELLS[2])
    assert unknown["holdout_met"] is None
