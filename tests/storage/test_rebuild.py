"""Optuna's study made anew from our rows, whatever became of it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import optuna
import pytest
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial

from storage.records import Json, Outcome, StudyRecord
from storage.repository import Repository, open_repository
from storage.study import (
    Reconciled,
    close_optuna_study,
    open_optuna_study,
    rebuild_if_stale,
    reconcile,
    tell,
    tell_stored,
)
from tests.storage.contract import DONE, begin, finish

SEQS: Final = (8, 16, 24, 32)
SPACE: Final[Mapping[str, BaseDistribution]] = {"max_num_seqs": IntDistribution(0, 3)}
OTHER: Final = Outcome("complete", (812.5, 7.0), {"itl_p99": -0.25}, judged_by="itl_p99:60")


def _indices(candidate: Json) -> dict[str, int]:
    return {"max_num_seqs": SEQS.index(candidate["max_num_seqs"])}


def _open(url: str) -> optuna.Study:
    return open_optuna_study(url, "night", directions=2, sampler=RandomSampler(seed=1))


def _rebuilt(study: optuna.Study, repository: Repository, record: StudyRecord) -> optuna.Study:
    return rebuild_if_stale(study, repository, record.id, distributions=SPACE, indices_of=_indices)


@pytest.fixture(scope="module")
def mirrored(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of five numbers: complete, a gap, failed, interrupted, complete."""
    path = tmp_path_factory.mktemp("mirrored") / "study.db"
    shutil.copy(template, path)
    study = _open(f"sqlite:///{path}")
    with open_repository(f"sqlite:///{path}") as repository:
        opened = repository.open_study("night", fingerprint={}, spec={})
        for number, outcome in enumerate([DONE, None, Outcome("fail"), None, DONE]):
            assert _ask(study) == number
            if number != 1:
                index = study.trials[number].params["max_num_seqs"]
                begin(repository, opened.id, number, candidate={"max_num_seqs": SEQS[index]})
            if outcome is not None:
                state = "complete" if outcome.values else "failed"
                finish(repository, opened.id, number, state=state, outcome=outcome)
                tell_stored(study, repository, opened.id, number)
        reconcile(study, repository, opened.id)
    close_optuna_study(study)
    return path


@pytest.fixture
def url(mirrored: Path, tmp_path: Path) -> str:
    shutil.copy(mirrored, tmp_path / "study.db")
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture
def study(url: str) -> Iterator[optuna.Study]:
    opened = _open(url)
    yield opened
    close_optuna_study(opened)


@pytest.fixture
def record(repository: Repository) -> StudyRecord:
    return repository.study("night")


def _ask(study: optuna.Study) -> int:
    return study.ask(dict(SPACE)).number


def _judge_again(repository: Repository, record: StudyRecord) -> None:
    for number in (0, 4):
        repository.rejudge_trial(record.id, number, state="complete", outcome=OTHER)


def _facts(trial: FrozenTrial) -> tuple[Any, ...]:
    return (trial.state.name, trial.values, trial.params, trial.constraints, trial.user_attrs)


def test_a_study_that_agrees_is_left_alone(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    before = study.trials
    assert _rebuilt(study, repository, record) is study
    assert study.trials == before


def test_a_rebuilt_study_is_what_telling_would_have_made(
    study: optuna.Study, repository: Repository, record: StudyRecord, url: str
) -> None:
    before = study.trials
    optuna.delete_study(study_name="night", storage=study._storage)
    again = _open(url)
    fresh = _rebuilt(again, repository, record)
    assert reconcile(fresh, repository, record.id) == Reconciled()
    after = fresh.trials
    close_optuna_study(again)
    gap: tuple[Any, ...] = ("FAIL", None, {}, {}, {})
    assert [_facts(trial) for trial in after] == [
        gap if trial.number == 1 else _facts(trial) for trial in before
    ]
    assert after[0].values == [812.5, math.inf]
    assert [trial.number for trial in after] == list(range(5))


def test_times_are_those_of_the_rows(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    _judge_again(repository, record)
    trial = _rebuilt(study, repository, record).trials[0]
    row = repository.trial(record.id, 0)
    assert trial.datetime_start is not None
    assert trial.datetime_start.astimezone() == datetime.fromisoformat(row.started_at)
    assert trial.duration is not None
    assert trial.duration.total_seconds() >= 0


def test_a_new_judgement_reaches_optuna(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    old = study.trials[0]
    _judge_again(repository, record)
    fresh = _rebuilt(study, repository, record)
    trial = fresh.trials[0]
    assert (trial.values, trial.constraints) == ([812.5, 7.0], {"itl_p99": -0.25})
    assert (old.user_attrs["feasible"], trial.user_attrs["feasible"]) == (False, True)
    assert trial.params == old.params
    assert fresh.sampler is study.sampler
    assert reconcile(fresh, repository, record.id) == Reconciled(told=(0, 4))
    assert _rebuilt(fresh, repository, record) is fresh
    assert _ask(fresh) == 5


def test_other_constraints_alone_are_a_disagreement(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    outcome = replace(DONE, constraints={"ttft_p95": 0.5})
    repository.rejudge_trial(record.id, 0, state="complete", outcome=outcome)
    fresh = _rebuilt(study, repository, record)
    assert fresh.trials[0].constraints == {"ttft_p95": 0.5}


def test_a_trial_that_still_runs_is_settled_by_reconcile(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    begin(repository, record.id, _ask(study), candidate={"max_num_seqs": 16})
    _judge_again(repository, record)
    fresh = _rebuilt(study, repository, record)
    assert fresh.trials[5].state.name == "RUNNING"
    assert reconcile(fresh, repository, record.id) == Reconciled(told=(0, 4), interrupted=(5,))
    assert fresh.trials[5].state.name == "FAIL"
    assert fresh.trials[5].params == {"max_num_seqs": 1}


def test_a_trial_told_in_part_by_another_budget_is_made_anew(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    trial = study.ask(dict(SPACE))
    begin(repository, record.id, trial.number, candidate={"max_num_seqs": 16})
    finish(repository, record.id, trial.number)
    trial.set_constraint("ttft_p95", DONE.constraints["ttft_p95"])
    assert _rebuilt(study, repository, record) is study
    repository.rejudge_trial(record.id, trial.number, state="complete", outcome=OTHER)
    fresh = _rebuilt(study, repository, record)
    assert fresh.trials[trial.number].constraints == OTHER.constraints


def test_a_trial_of_optuna_that_ended_otherwise_is_corrected(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    number = _ask(study)
    begin(repository, record.id, number, candidate={"max_num_seqs": 16})
    tell(study, number, Outcome("fail"))
    finish(repository, record.id, number)
    assert _rebuilt(study, repository, record).trials[number].values == [812.5, math.inf]


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


@pytest.mark.parametrize("at", ["deleted", "created", "claimed", 1, 4])
def test_a_rebuild_killed_anywhere_is_repaired(
    study: optuna.Study,
    repository: Repository,
    record: StudyRecord,
    url: str,
    at: str | int,
) -> None:
    _judge_again(repository, record)
    rows = repository.trials(record.id)
    with pytest.MonkeyPatch.context() as patch:
        _kill_at(patch, at)
        with pytest.raises(Killed):
            _rebuilt(study, repository, record)
    again = _open(url)
    fresh = _rebuilt(again, repository, record)
    assert repository.trials(record.id) == rows
    reconcile(fresh, repository, record.id)
    after = fresh.trials
    close_optuna_study(again)
    assert [trial.state.name for trial in after] == ["COMPLETE", *["FAIL"] * 3, "COMPLETE"]
    assert after[4].constraints == OTHER.constraints
    assert repository.untold(record.id) == ()


def _kill_at(patch: pytest.MonkeyPatch, at: str | int) -> None:
    """Let the rebuild die after a step, a number being that of the last trial added."""
    add, create = optuna.Study.add_trial, optuna.create_study

    def die(*_: object, **__: object) -> None:
        raise Killed

    def create_and_die(**options: Any) -> None:
        create(**options)
        raise Killed

    def add_and_die(study: optuna.Study, trial: FrozenTrial) -> None:
        add(study, trial)
        if len(study.trials) == int(at) + 1:
            raise Killed

    match at:
        case "deleted":
            patch.setattr(optuna, "create_study", die)
        case "created":
            patch.setattr(optuna, "create_study", create_and_die)
        case "claimed":
            patch.setattr(optuna.Study, "add_trial", die)
        case _:
            patch.setattr(optuna.Study, "add_trial", add_and_die)
