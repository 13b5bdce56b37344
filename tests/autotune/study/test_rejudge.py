from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import optuna
import pytest

from autotune.engine.protocol import Failure, TrialFailed
from autotune.study.earlier import earlier_study
from autotune.study.job import Job, make_job
from autotune.study.judgement import Judgement, judge, verdict_json
from autotune.study.outcomes import Yardstick
from autotune.study.rejudge import rejudge
from autotune.study.sampler import distributions
from objectives.errors import ObjectiveError
from objectives.limits import parse_budget
from storage.records import Outcome, TrialFailure, TrialRecord
from storage.repository import Repository, open_repository
from storage.study import close_optuna_study, open_optuna_study, rebuild_if_stale, reconcile
from tests.autotune.study.scripted import (
    DESCRIPTION,
    ScriptedEngines,
    clear_knee,
    job_of,
    opened,
    settings_of,
    small_trace,
)
from tests.storage.events import events_of

pytestmark = pytest.mark.study

CLASSES: Final = "short:0-512 long:512-"
TRIALS: Final = 5


def refusing(start: int) -> ScriptedEngines:
    """Return engines of which one does not start."""
    failed = TrialFailed(Failure("no_kv_room", "no room"))
    return ScriptedEngines(faults={("start", start): failed})


def run(folder: Path, engines: ScriptedEngines, **changes: Any) -> tuple[TrialRecord, ...]:
    with opened(folder, job_of(trials=TRIALS, **changes), engines) as running:
        running.controller.run()
        return running.rows()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study in which one cell was sent 35 ms late, twice, and one did not start."""
    folder = tmp_path_factory.mktemp("finished")
    engines = refusing(3)
    engines.truth = lambda candidate: replace(
        clear_knee(candidate), send_lag_s=0.035 if len(engines.started) in (2, 3) else 0.0
    )
    rows = run(folder, engines)
    states = [row.state for row in rows]
    assert states == ["complete", "invalid", "invalid", "infeasible", *["complete"] * 3]
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that may be judged by any budget, and again."""
    folder = tmp_path_factory.mktemp("plain")
    run(folder, refusing(2))
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of the study, to be judged again."""
    shutil.copy(finished / "study.db", tmp_path / "study.db")
    return tmp_path


@contextmanager
def repository_in(folder: Path) -> Iterator[tuple[Repository, int]]:
    with open_repository(f"sqlite:///{folder / 'study.db'}") as repository:
        yield repository, repository.study("study").id


def judged_again(folder: Path, job: Job) -> tuple[TrialRecord, ...]:
    with repository_in(folder) as (repository, study_id):
        rejudge(repository, study_id, yardstick_of(job))
        return repository.trials(study_id)


def optuna_trials(folder: Path, job: Job) -> list[optuna.trial.FrozenTrial]:
    """Catch up with the rows as a starting controller does; return what Optuna then holds."""
    with repository_in(folder) as (repository, study_id):
        study = open_optuna_study(
            f"sqlite:///{folder / 'study.db'}",
            "study",
            directions=3,
            sampler=optuna.samplers.RandomSampler(),
        )
        study = rebuild_if_stale(
            study,
            repository,
            study_id,
            distributions=distributions(job.lattice),
            indices_of=job.lattice.indices,
        )
        reconcile(study, repository, study_id)
        trials = study.trials
        close_optuna_study(study)
    return trials


def yardstick_of(job: Job) -> Yardstick:
    return Yardstick(job.budget, job.classes, job.baseline)


def judgement_of(folder: Path, job: Job) -> Judgement:
    with repository_in(folder) as (repository, study_id):
        found = judge(
            repository.trials(study_id),
            lambda number: repository.samples(study_id, number),
            budget=job.budget,
            classes=job.classes,
            baseline=job.baseline,
        )
    assert found is not None
    return found


def judged(row: TrialRecord) -> Mapping[str, Any]:
    """Return the part of a row that a budget decides."""
    names = (
        "state", "metrics", "intervals", "outcome", "diagnosis", "failure_class",
        "failure_evidence",
    )  # fmt: skip
    return {name: getattr(row, name) for name in names}


def test_the_same_budget_writes_nothing(folder: Path) -> None:
    job = job_of()
    with repository_in(folder) as (repository, study_id):
        url = f"sqlite:///{folder / 'study.db'}"
        before = repository.study(None), repository.trials(study_id), events_of(url, study_id)
        assert rejudge(repository, study_id, yardstick_of(job)) == ()
        after = repository.study(None), repository.trials(study_id), events_of(url, study_id)
    assert after == before


@pytest.mark.parametrize(
    ("budget", "classes"),
    [
        ("ttft_p95:150 itl_p99@short:12 itl_p50@long:12", CLASSES),
        ("ttft_p95:1.5x tpot_p95:0.6x", ""),
        ("ttft_p95:150 tpot_p90:0.9x ttft_p90@short:0.9x", CLASSES),
        ("", CLASSES),
    ],
)
def test_judging_again_is_as_if_the_budget_had_been_this_one(
    plain: Path, tmp_path: Path, budget: str, classes: str
) -> None:
    expected = run(tmp_path, refusing(2), budget=budget, classes=classes)
    rows = judged_again(plain, job_of(budget=budget, classes=classes))
    assert [row.candidate for row in rows] == [row.candidate for row in expected]
    assert [judged(row) for row in rows] == [judged(row) for row in expected]


def test_another_budget_changes_feasibility_verdict_and_optuna(folder: Path) -> None:
    before, job = judgement_of(folder, job_of()), job_of(budget="ttft_p95:110 tpot_p95:25")
    old = optuna_trials(folder, job)
    rows = judged_again(folder, job)
    after = judgement_of(folder, job)
    assert (before.baseline, before.cells[0].feasible) == (0, False)
    assert before.winner not in (None, 0)
    assert after.cells[0].feasible
    assert after.winner == 0
    new = optuna_trials(folder, job)
    assert set(old[0].constraints) == set(new[0].constraints)
    assert old[0].constraints["tpot_p95"] > 0 > new[0].constraints["tpot_p95"]
    for row, trial in zip(rows, new, strict=True):
        assert row.outcome is not None
        assert trial.constraints == row.outcome.constraints
        assert trial.values == (row.outcome.values and list(row.outcome.values))
        assert job.lattice.at(trial.params) == row.candidate
    with repository_in(folder) as (repository, study_id):
        assert repository.untold(study_id) == ()


def test_a_limit_on_a_new_class_gets_metrics_intervals_and_an_objective(folder: Path) -> None:
    job = job_of(budget="ttft_p95:400 itl_p50@short:12", classes=CLASSES)
    old = judged_again(folder, job_of())[0]
    new = judged_again(folder, job)[0]
    assert old.metrics is not None
    assert "itl_p50@short" not in old.metrics
    assert new.metrics is not None
    assert new.intervals is not None
    itl_ms = new.metrics["itl_p50@short"]
    low, high = new.intervals["itl_p50@short"]
    assert itl_ms is not None
    assert low <= itl_ms <= high
    assert optuna_trials(folder, job)[0].values[1] == itl_ms
    assert new.outcome is not None
    assert new.outcome.constraints["itl_p50@short"] == pytest.approx(itl_ms / 12 - 1)


def test_failures_stay_infeasible_and_are_told_by_the_new_budget(folder: Path) -> None:
    row = judged_again(folder, job_of(budget="tpot_p95:50 ttft_p99:400"))[3]
    assert (row.state, row.failure_class, row.failure_evidence) == (
        "infeasible",
        "no_kv_room",
        "no room",
    )
    assert row.metrics is None
    assert row.outcome is not None
    assert row.outcome.values is not None
    assert row.outcome.values[:2] == (4000, 500)
    assert row.outcome.constraints == {"failure": 30.0}


def test_lateness_that_a_looser_limit_allows_counts(folder: Path) -> None:
    rows = judged_again(folder, job_of(budget="ttft_p95:400"))
    for row in rows[1:3]:
        assert (row.state, row.failure_class, row.failure_evidence) == ("complete", None, None)
        assert row.outcome is not None
        assert row.outcome.feasible
    assert optuna_trials(folder, job_of())[1].state.name == "COMPLETE"


@pytest.mark.parametrize(
    ("history", "budget"),
    [
        (["ttft_p95:400"], "ttft_p95:300 tpot_p95:16"),
        (["ttft_p95:200", ""], "ttft_p95:400 tpot_p95:1.1x"),
    ],
)
def test_no_earlier_budget_leaves_a_trace(
    finished: Path, tmp_path: Path, history: list[str], budget: str
) -> None:
    """States, failures, what Optuna is told and the verdict follow from the last budget alone."""
    straight, winding = tmp_path / "straight", tmp_path / "winding"
    for folder in (straight, winding):
        folder.mkdir()
        shutil.copy(finished / "study.db", folder / "study.db")
    for earlier in history:
        judged_again(winding, job_of(budget=earlier))
    job = job_of(budget=budget)
    expected = judged_again(straight, job)
    assert [judged(r) for r in judged_again(winding, job)] == [judged(r) for r in expected]
    verdicts = {json.dumps(verdict_json(judgement_of(f, job))) for f in (straight, winding)}
    assert len(verdicts) == 1
    assert [(t.state, t.values, t.constraints) for t in optuna_trials(winding, job)] == [
        (t.state, t.values, t.constraints) for t in optuna_trials(straight, job)
    ]


def test_lateness_that_a_stricter_limit_does_not_allow_no_longer_counts(folder: Path) -> None:
    loose, strict = job_of(budget="ttft_p95:400"), job_of()
    before = judged_again(folder, strict)
    assert judged_again(folder, loose)[1].state == "complete"
    assert optuna_trials(folder, strict)[1].state.name == "COMPLETE"
    rows = judged_again(folder, strict)
    assert [judged(row) for row in rows] == [judged(row) for row in before]
    assert (rows[1].state, rows[1].failure_class) == ("invalid", "client_bound")
    assert optuna_trials(folder, strict)[1].state.name == "FAIL"


def test_the_verdict_needs_no_judging_again(folder: Path) -> None:
    """A judging that is killed half-way leaves states of two budgets, and one verdict."""
    job = job_of(budget="ttft_p95:400")
    before = verdict_json(judgement_of(folder, job))
    judged_again(folder, job)
    assert verdict_json(judgement_of(folder, job)) == before


def test_lateness_beyond_the_new_limit_too_does_not_count(folder: Path) -> None:
    before = judged_again(folder, job_of())[1]
    row = judged_again(folder, job_of(budget="ttft_p95:200"))[1]
    assert (row.state, row.failure_class) == ("invalid", "client_bound")
    assert (before.failure_evidence or "").endswith("over 30.0 ms")
    assert (row.failure_evidence or "").endswith("over 20.0 ms")
    assert row.outcome == Outcome("fail", judged_by="ttft_p95:200 |")


def test_what_did_not_count_for_another_reason_does_not_count(folder: Path) -> None:
    with repository_in(folder) as (repository, study_id):
        row = repository.trial(study_id, 1)
        slow = replace(row, failure_class="slow_spell")
        assert slow.outcome is not None
        repository.rejudge_trial(
            study_id,
            1,
            state="invalid",
            outcome=slow.outcome,
            metrics=slow.metrics,
            intervals=slow.intervals,
            failure=TrialFailure("slow_spell", "x"),
        )
    row = judged_again(folder, job_of(budget="ttft_p95:400"))[1]
    assert (row.state, row.failure_class, row.failure_evidence) == ("invalid", "slow_spell", "x")


def test_an_impossible_budget_leaves_everything_as_it_was(folder: Path) -> None:
    with repository_in(folder) as (repository, study_id):
        before = repository.trials(study_id)
        job = job_of(budget="itl_p99@huge:0.9x", classes="huge:5000-")
        with pytest.raises(ObjectiveError, match="the baseline has no itl_p99@huge"):
            rejudge(repository, study_id, yardstick_of(job))
        assert repository.trials(study_id) == before


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


@pytest.mark.parametrize("number", [0, 3])
def test_a_killed_judging_is_finished_or_undone(
    folder: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    old, new = job_of(), job_of(budget="ttft_p95:110 tpot_p95:25")
    untouched = judged_again(finished, old)
    store = Repository.rejudge_trial

    def store_and_die(self: Repository, study_id: int, at: int, **content: Any) -> None:
        store(self, study_id, at, **content)
        if at == number:
            raise Killed

    with monkeypatch.context() as patch, repository_in(folder) as (repository, study_id):
        patch.setattr(Repository, "rejudge_trial", store_and_die)
        with pytest.raises(Killed):
            rejudge(repository, study_id, yardstick_of(new))
    undone, completed = folder / "undone", folder / "completed"
    for each in (undone, completed):
        shutil.copytree(folder, each, ignore=shutil.ignore_patterns("undone", "completed"))
    assert [judged(r) for r in judged_again(undone, old)] == [judged(r) for r in untouched]
    assert [t.values for t in optuna_trials(undone, old)] == [
        t.values for t in optuna_trials(finished, old)
    ]
    rows = judged_again(completed, new)
    assert {r.outcome.judged_by for r in rows if r.outcome} == {yardstick_of(new).text}
    assert optuna_trials(completed, new)[0].constraints["tpot_p95"] < 0


def test_the_ladders_of_a_study_outlast_its_budget(folder: Path) -> None:
    loose = "ttft_p95:60000 tpot_p95:5000"
    earlier = earlier_study(f"sqlite:///{folder / 'study.db'}", "study")
    assert earlier is not None
    assert earlier.peak_concurrency is not None
    job = make_job(
        settings_of(budget=loose),
        small_trace(),
        parse_budget(loose),
        (),
        DESCRIPTION,
        peak=earlier.peak_concurrency,
    )
    assert job.fingerprint() == job_of().fingerprint()
    assert job_of(budget=loose).fingerprint() != job.fingerprint()
