"""Replays that were cut short: what they prove, and what becomes of them under other budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.study.counted import bounds_of, breaks_for_certain, censored, counted_trials
from autotune.study.judgement import judge
from autotune.study.outcomes import CLIPPED_AT, Yardstick
from autotune.study.plan import finished_trials, retry
from autotune.study.rejudge import rejudge
from objectives.classes import parse_classes
from objectives.limits import parse_budget
from storage.records import Outcome, TrialFailure, TrialRecord
from storage.repository import Repository, open_repository
from tests.autotune.study.records import Measured, limits, record
from tests.autotune.study.scripted import BASELINE, Speed, job_of

CLASSES = "short:0-500 long:500-"
CUT = {
    "limit": "ttft_p95",
    "bound_ms": 1234.5,
    "at_s": 12.3,
    "sent": 100,
    "requests": 400,
    "bounds": {"ttft_p95": 1234.5, "tpot_p95": 9.0, "ttft_p95@long": 2000.0, "e2e_p99": None},
    "classes": CLASSES,
}


def cut_short(number: int = 3, *, live: bool = True, **changes: Any) -> TrialRecord:
    values = {"state": "infeasible", "engine": {"censored": CUT}}
    fidelity = "live" if live else "restart"
    return record(number, limits(512), fidelity=fidelity, **{**values, **changes})


@pytest.mark.parametrize(
    ("budget", "classes", "broken"),
    [
        ("ttft_p95:800", "", True),
        ("ttft_p95:1234.5", "", False),
        ("tpot_p95:8 ttft_p95:2000", "", True),
        ("ttft_p99:800 e2e_p99:9", "", False),
        ("ttft_p95@long:1500", CLASSES, True),
        ("ttft_p95@long:1500", "short:0-700 long:700-", False),
        ("", "", False),
    ],
)
def test_what_a_cut_replay_proves(budget: str, classes: str, broken: bool) -> None:
    found = breaks_for_certain(cut_short(), parse_budget(budget), parse_classes(classes))
    assert found == broken


def test_a_whole_replay_proves_nothing_of_the_kind() -> None:
    assert censored(record(0)) is None
    assert not breaks_for_certain(record(0), parse_budget("ttft_p95:1"), ())


def test_bounds_of_other_classes_are_left_out() -> None:
    assert bounds_of(CUT, parse_classes(CLASSES)) == CUT["bounds"]
    assert bounds_of(CUT, ()).keys() == {"ttft_p95", "tpot_p95", "e2e_p99"}


def test_a_cut_replay_is_no_cell() -> None:
    study = Measured(budget="ttft_p95:800")
    study.add(BASELINE, Speed(100, 10))
    study.trials.append(cut_short(1))
    found = judge(
        study.trials, study.samples.__getitem__, budget=study.budget, classes=(), baseline=BASELINE
    )
    assert found is not None
    assert [cell.candidate for cell in found.cells] == [BASELINE]


@pytest.mark.parametrize(("limit_ms", "counted"), [(800, [0]), (1500, [0, 1])])
def test_a_restart_that_was_cut_short_refutes_live_trials_of_its_candidate(
    limit_ms: float, counted: list[int]
) -> None:
    study = Measured(budget="ttft_p95:800")
    study.add(BASELINE, Speed(100, 10))
    study.add(limits(512), Speed(100, 10), fidelity="live")
    for cut, expected in ((cut_short(live=False), counted), (cut_short(), [0, 1])):
        rows = [*study.trials, cut]
        found = counted_trials(rows, parse_budget(f"ttft_p95:{limit_ms}"), BASELINE)
        assert [row.number for row in found] == expected


def told(budget: str, bounds: dict[str, float | None], share_sent: float) -> Outcome:
    return Yardstick(parse_budget(budget), (), BASELINE).censored(bounds, share_sent, [])


def test_what_optuna_is_told() -> None:
    outcome = told("ttft_p95:800 tpot_p95:16", {"ttft_p95": 1200.0, "tpot_p95": 9.0}, 0.25)
    assert outcome.state == "complete"
    assert outcome.feasible is False
    assert outcome.constraints == {"ttft_p95": 0.5 + 0.75, "tpot_p95": 0.0}
    assert outcome.values is not None
    assert outcome.values[:2] == (8000.0, 160.0)
    assert outcome.judged_by == "ttft_p95:800 tpot_p95:16 |"


def test_who_was_cut_short_sooner_ranks_behind() -> None:
    sooner, later = (told("ttft_p95:800", {"ttft_p95": 900.0}, share) for share in (0.1, 0.9))
    assert sooner.constraints["ttft_p95"] > later.constraints["ttft_p95"] > 0


def test_nothing_looks_worse_than_what_cannot_run() -> None:
    yardstick = Yardstick(parse_budget("ttft_p95:800"), (), BASELINE)
    (worst,) = yardstick.censored({"ttft_p95": math.inf}, 0.0, []).constraints.values()
    (failure,) = yardstick.infeasible([]).constraints.values()
    assert worst == CLIPPED_AT < failure


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[Repository, int]]:
    """A study of one trial that was cut short under ttft_p95:800, and one in a slow spell."""
    job = job_of(budget="ttft_p95:800")
    with open_repository(f"sqlite:///{tmp_path / 'study.db'}") as repository:
        study = repository.open_study("study", fingerprint=job.fingerprint(), spec=job.spec())
        yardstick = Yardstick(job.budget, (), BASELINE)
        for number in (0, 1):
            repository.begin_trial(
                study.id,
                number,
                phase="search",
                fidelity="live",
                candidate=limits(512 + 128 * number),
                replicate_of=None,
                log_path="trial.log",
            )
        bounds = {**CUT["bounds"], "e2e_p95": math.inf}  # type: ignore[dict-item]
        repository.finish_trial(
            study.id,
            0,
            state="infeasible",
            outcome=yardstick.censored(bounds, 0.25, []),
            engine={"censored": {**CUT, "bounds": bounds}, "send_lag_p99_ms": 30.0},
        )
        repository.finish_trial(
            study.id,
            1,
            state="invalid",
            outcome=yardstick.uncounted(),
            failure=TrialFailure("slow_spell", "1.2 times as slow for 4 s"),
        )
        yield repository, study.id


def rejudged(stored: tuple[Repository, int], budget: str) -> tuple[TrialRecord, ...]:
    repository, study_id = stored
    rejudge(repository, study_id, Yardstick(parse_budget(budget), (), BASELINE))
    return repository.trials(study_id)


def test_a_stricter_budget_is_lost_too(stored: tuple[Repository, int]) -> None:
    row, _ = rejudged(stored, "ttft_p95:400")
    assert row.state == "infeasible"
    assert row.outcome is not None
    assert row.outcome.constraints["ttft_p95"] == pytest.approx(1234.5 / 400 - 1 + 0.75)


def test_a_budget_so_strict_that_the_client_was_late_proves_nothing(
    stored: tuple[Repository, int],
) -> None:
    row, _ = rejudged(stored, "ttft_p95:200")
    assert (row.state, row.failure_class) == ("invalid", "client_bound")
    assert not breaks_for_certain(row, parse_budget("ttft_p95:200"), ())
    assert breaks_for_certain(row, parse_budget("ttft_p95:400"), ())


def test_under_a_looser_budget_it_is_to_be_measured_whole(
    stored: tuple[Repository, int],
) -> None:
    rows = rejudged(stored, "ttft_p95:2000")
    assert rows[0].state == "interrupted"
    assert rows[0].outcome is not None
    assert rows[0].outcome.values is None
    assert finished_trials(rows) == 0
    again = retry(rows)
    assert again is not None
    assert (again.candidate, again.fidelity, again.replicate_of) == (limits(512), "live", 0)


def test_the_first_budget_again_gives_the_first_rows_again(
    stored: tuple[Repository, int],
) -> None:
    repository, study_id = stored
    before = repository.trials(study_id)
    for budget in ("ttft_p95:2000", "ttft_p95:200", "ttft_p95:800"):
        after = rejudged(stored, budget)
    assert [(row.state, row.outcome, row.failure_class) for row in after] == [
        (row.state, row.outcome, row.failure_class) for row in before
    ]


@pytest.mark.parametrize("budget", ["", "ttft_p95:1", "ttft_p95:9999"])
def test_a_slow_spell_counts_under_no_budget(stored: tuple[Repository, int], budget: str) -> None:
    row = rejudged(stored, budget)[1]
    assert (row.state, row.failure_class) == ("invalid", "slow_spell")
    measured = record(1, state="invalid", failure_class="slow_spell", metrics={"ttft_p95": 0.5})
    assert counted_trials([measured], parse_budget(budget), BASELINE) == []


def test_a_slow_spell_is_tried_once_more() -> None:
    hit = record(1, limits(512), state="invalid", failure_class="slow_spell", fidelity="live")
    again = retry([record(0, phase="baseline"), hit])
    assert again is not None
    assert (again.candidate, again.fidelity) == (limits(512), "live")
    assert retry([record(0, phase="baseline"), hit, hit]) is None
