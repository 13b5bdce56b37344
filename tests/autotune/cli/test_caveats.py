"""What a verdict adds of candidates without a result, of other work, and of what is to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.cli.caveats import caveat_lines, few_requests_lines
from autotune.cli.watch import ScreenWatcher
from autotune.cli.words import study_verdict, verdict_lines
from autotune.study.view import StudyView
from objectives.limits import parse_budget
from storage.records import FinishedState, TrialRecord
from tests.autotune.cli.judgements import CELLS, judgement
from tests.autotune.study.records import limits, record, study_record

LOOSENED = parse_budget("ttft_p95:300 tpot_p95:20")


def caveats(*trials: TrialRecord) -> list[str]:
    return list(caveat_lines(judgement("knee", winner=1), trials))


def missed(number: int, state: FinishedState, why: str, **changes: Any) -> TrialRecord:
    return record(number, limits(512, 48), state=state, failure_class=why, **changes)


def cut_short(number: int, tpot_ms: float, **changes: Any) -> TrialRecord:
    cut = {"bounds": {"tpot_p95": tpot_ms}, "classes": "", "limit": "tpot_p95"}
    return record(number, limits(4096), state="infeasible", engine={"censored": cut}, **changes)


def watched(number: int, busy: float) -> TrialRecord:
    machine = {"cpu_busy_ratio": {"mean": busy}, "own_cpu_ratio": {"mean": 0.4}}
    return record(number, limits(512), engine={"hardware": {"machine": machine}})


def test_a_window_that_is_too_short_for_any_verdict() -> None:
    assert few_requests_lines(6) == []
    (line,) = few_requests_lines(1)
    assert line == (
        "Too short to tell candidates apart: the window has 1 request, and even p50 has no upper "
        "bound below 6. Give a longer --window, which is a new study."
    )
    assert "the window has 5 requests, " in few_requests_lines(5)[0]


def test_it_is_said_when_a_study_begins_and_before_its_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = study_record()
    short = replace(study, spec={**study.spec, "requests": 1})
    with ScreenWatcher() as watcher:
        watcher.opened(short, [])
    told = capsys.readouterr().err.splitlines()
    assert told == few_requests_lines(1)
    found = judgement("knee", winner=1)
    first, second, *_ = study_verdict(StudyView(short, (), found))
    assert [first] == told
    assert study_verdict(StudyView(study, (), found))[0] == second


def test_a_candidate_without_a_result_is_named() -> None:
    late, slow = missed(3, "invalid", "client_bound"), missed(4, "invalid", "slow_spell")
    said = "Could not be measured, so nothing is known of: 512/48 (client_bound, slow_spell)."
    assert caveats(late, slow) == [said]
    assert said in verdict_lines(judgement("knee", winner=1), trials=(late, slow))
    assert caveats(late, record(4, limits(512, 48), state="infeasible")) == []
    assert caveats(late) == [], "it is due once more"


def test_sentinels_and_what_counts_by_now_are_no_missing_candidates() -> None:
    sentinels = [missed(n, "invalid", "slow_spell", phase="sentinel") for n in (1, 2)]
    late = [
        record(n, CELLS[1].candidate, state="invalid", failure_class="client_bound")
        for n in (3, 4)
    ]
    assert caveats(*sentinels, *late) == []


def test_replays_beside_other_work_are_counted() -> None:
    quiet, busy, busier = watched(0, 0.5), watched(1, 0.8), watched(4, 0.95)
    assert caveats(quiet, busy, busier, record(5)) == [
        (
            "2 of 3 replays ran beside other work, which had up to 55 % of the processors: "
            "trials 1 and 4."
        )
    ]
    assert caveats(busy) == [
        "1 of 1 replay ran beside other work, which had 40 % of the processors: trial 1."
    ]
    assert caveats(quiet, record(5)) == []


@pytest.mark.parametrize(
    ("trials", "total", "then"),
    [
        ((), 0, ", without an engine"),
        ([cut_short(1, 99.0)], 1, ", without an engine"),
        ([cut_short(1, 17.0)], 1, "; the one that was cut short is measured again"),
        (
            [cut_short(1, 17.0), cut_short(2, 18.0), cut_short(3, 21.0)],
            5,
            "; the 2 cut short are measured again and up to 2 more trials may confirm it",
        ),
    ],
)
def test_what_a_looser_budget_takes(trials: Sequence[TrialRecord], total: int, then: str) -> None:
    verdict = judgement("nothing_feasible", winner=None, nearest=0, loosened=LOOSENED)
    proposed = (
        f" with --budget '{LOOSENED.text}', which 2048/64 meets: these trials are judged "
        f"again{then}."
    )
    (line,) = (
        line
        for line in verdict_lines(verdict, trials=trials, total=total)
        if line.endswith(proposed)
    )
    # A study that ended early has nothing to search on for.
    start = "Next: the same command" if len(trials) < total else "Or"
    assert line == start + proposed


def test_the_only_candidate_that_was_measured_to_the_end() -> None:
    verdict = judgement("not_converged", winner=0, cells=CELLS[:1])
    assert verdict_lines(verdict)[0].endswith("is the only candidate that was measured.")
    lines = verdict_lines(verdict, trials=[cut_short(1, 17.0)])
    assert lines[0].endswith("is the only candidate that was measured to the end.")
