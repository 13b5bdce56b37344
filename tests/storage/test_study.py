from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from storage.database import parse_url
from storage.errors import StorageError, StorageUnavailable
from storage.names import optuna_name
from storage.records import Outcome, StudyRecord
from storage.repository import Repository
from storage.study import (
    Reconciled,
    check_optuna_study,
    close_optuna_study,
    open_optuna_study,
    reconcile,
    tell,
    tell_stored,
)
from tests.storage.contract import CANDIDATE, DONE, ODD_NAMES, begin, finish
from tests.storage.events import events_of, kinds_of

pytestmark = pytest.mark.usefixtures("prepared")


def _open(url: str, name: str = "night", *, directions: int = 2) -> optuna.Study:
    return open_optuna_study(url, name, directions=directions, sampler=TPESampler(seed=1))


def _check(url: str) -> None:
    check_optuna_study(url, "night", directions=2)


@pytest.fixture
def record(repository: Repository) -> StudyRecord:
    return repository.open_study("night", fingerprint={}, spec={})


@pytest.fixture
def study(url: str) -> Iterator[optuna.Study]:
    opened = _open(url)
    yield opened
    close_optuna_study(opened)


def _ask(study: optuna.Study) -> int:
    trial = study.ask()
    trial.suggest_int("max_num_seqs", 0, 7)
    return trial.number


def test_all_objectives_are_minimised_on_one_database(study: optuna.Study, url: str) -> None:
    assert study.study_name == "night"
    assert study.directions == [optuna.study.StudyDirection.MINIMIZE] * 2
    with closing(sqlite3.connect(str(parse_url(url).database))) as connection:
        assert connection.execute("SELECT count(*) FROM studies").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_opening_again_keeps_the_trials(study: optuna.Study, url: str) -> None:
    tell(study, _ask(study), DONE)
    again = _open(url)
    assert [trial.values for trial in again.trials] == [[812.5, math.inf]]
    close_optuna_study(again)
    close_optuna_study(again)


@pytest.mark.parametrize("name", [ODD_NAMES[0], ODD_NAMES[-1]])
def test_odd_names(url: str, name: str) -> None:
    for _ in range(2):
        study = _open(url, name)
        assert study.study_name == optuna_name(name)
        close_optuna_study(study)


def test_long_names_are_cut_apart() -> None:
    first, second = optuna_name("x" * 600), optuna_name("x" * 601)
    assert first != second
    assert len(first) == len(second) == 512
    assert optuna_name("y" * 512) == "y" * 512


def test_odd_file_names(tmp_path: Path) -> None:
    path = tmp_path / "{night} 100%.db"
    close_optuna_study(_open(f"sqlite:///{path}"))
    assert path.is_file()


def test_a_study_of_another_program_is_not_touched(url: str, tmp_path: Path) -> None:
    storage = optuna.storages.RDBStorage(url)
    theirs = optuna.create_study(study_name="night", storage=storage, directions=["minimize"] * 2)
    theirs.ask()
    for refuses in (_open, _check):
        with pytest.raises(StorageError, match="belongs to another program"):
            refuses(url)
    assert [trial.state for trial in theirs.trials] == [TrialState.RUNNING]
    storage.remove_session()
    storage.engine.dispose()


def test_another_number_of_objectives_is_refused(study: optuna.Study, url: str) -> None:
    with pytest.raises(StorageError, match="has 2 objectives, not 3"):
        _open(url, directions=3)
    with pytest.raises(StorageError, match="has 2 objectives, not 3"):
        check_optuna_study(url, "night", directions=3)


def test_a_study_that_could_be_made_is_not_made(url: str, tmp_path: Path) -> None:
    before = (tmp_path / "study.db").read_bytes()
    _check(url)
    assert (tmp_path / "study.db").read_bytes() == before
    close_optuna_study(_open(url))
    _check(url)


def test_tables_of_another_optuna_are_refused(url: str, tmp_path: Path) -> None:
    close_optuna_study(_open(url))
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v0.9.0.a'")
    with pytest.raises(StorageUnavailable, match=r"have schema v0\.9\.0\.a") as caught:
        _open(url)
    assert "optuna storage upgrade" in caught.value.hint


def test_an_unusable_database(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("a shopping list\n" * 100)
    with pytest.raises(StorageUnavailable, match="not a database"):
        _open(f"sqlite:///{tmp_path / 'study.db'}")


def test_a_complete_outcome_is_told_with_all_it_carries(study: optuna.Study) -> None:
    number = _ask(study)
    assert tell(study, number, DONE, phase="search", candidate=CANDIDATE)
    trial = study.trials[number]
    assert (trial.state, trial.values) == (TrialState.COMPLETE, [812.5, math.inf])
    assert trial.constraints == DONE.constraints
    assert trial.user_attrs == {**CANDIDATE, "phase": "search", "feasible": False}


def test_a_failed_outcome_has_no_feasibility(study: optuna.Study) -> None:
    number = _ask(study)
    assert tell(study, number, Outcome("fail"), phase="search")
    assert study.trials[number].state == TrialState.FAIL
    assert study.trials[number].user_attrs == {"phase": "search"}


def test_telling_twice_is_harmless(study: optuna.Study) -> None:
    number = _ask(study)
    tell(study, number, DONE)
    before = study.trials
    assert tell(study, number, DONE)
    assert study.trials == before


def test_optuna_does_not_change_a_finished_trial(study: optuna.Study) -> None:
    number = _ask(study)
    tell(study, number, Outcome("fail"))
    assert not tell(study, number, DONE)
    assert study.trials[number].state == TrialState.FAIL


def test_constraints_told_in_part_are_completed(study: optuna.Study) -> None:
    trial = study.ask()
    trial.set_constraint("failed", 0.0)
    tell(study, trial.number, DONE)
    assert study.trials[0].constraints == DONE.constraints


def test_attributes_that_a_trial_began_with_are_completed(study: optuna.Study) -> None:
    study.enqueue_trial({}, user_attrs={"phase": "starts", "rule": "chats"})
    tell(study, study.ask().number, DONE, phase="search", candidate=CANDIDATE)
    expected = {**CANDIDATE, "rule": "chats", "phase": "search", "feasible": False}
    assert study.trials[0].user_attrs == expected


def test_what_cannot_be_told(study: optuna.Study) -> None:
    number = _ask(study)
    with pytest.raises(StorageError, match="1 objective values, the study 2"):
        tell(study, number, Outcome("complete", (1.0,)))
    with pytest.raises(StorageError, match="has no trial 5"):
        tell(study, 5, DONE)
    assert study.trials[number].state == TrialState.RUNNING


def test_a_stored_outcome_is_told_and_marked(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    begin(repository, record.id, _ask(study))
    with pytest.raises(StorageError, match="no outcome"):
        tell_stored(study, repository, record.id, 0)
    finish(repository, record.id)
    assert tell_stored(study, repository, record.id, 0)
    assert repository.untold(record.id) == ()
    assert study.trials[0].user_attrs["phase"] == "search"


def test_nothing_to_reconcile(
    study: optuna.Study, repository: Repository, record: StudyRecord, url: str
) -> None:
    assert reconcile(study, repository, record.id) == Reconciled()
    assert kinds_of(url, record.id) == ["started"]


def test_every_kind_of_leftover_is_settled(
    study: optuna.Study, repository: Repository, record: StudyRecord, url: str
) -> None:
    for number in range(4):
        assert _ask(study) == number
    for number in range(3):
        begin(repository, record.id, number)
    finish(repository, record.id, 0)
    finish(repository, record.id, 1)
    tell(study, 1, DONE)
    study.enqueue_trial({"max_num_seqs": 3})
    study.enqueue_trial({"max_num_seqs": 4})

    done = reconcile(study, repository, record.id)

    assert done == Reconciled(told=(0, 1), interrupted=(2,), orphaned=(3,), cleared=(4, 5))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2 + ["FAIL"] * 4
    assert repository.untold(record.id) == ()
    assert events_of(url, record.id)[-1][1]["cleared"] == [4, 5]
    assert reconcile(study, repository, record.id) == Reconciled()


def test_a_trial_told_but_running_in_optuna_is_told_again(
    study: optuna.Study, repository: Repository, record: StudyRecord
) -> None:
    begin(repository, record.id, _ask(study))
    finish(repository, record.id)
    repository.mark_told(record.id, 0)
    reconcile(study, repository, record.id)
    assert study.trials[0].state == TrialState.COMPLETE


def test_a_disagreement_is_logged_and_ends(
    study: optuna.Study,
    repository: Repository,
    record: StudyRecord,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begin(repository, record.id, _ask(study))
    finish(repository, record.id)
    study.tell(0, state=TrialState.FAIL)
    reconcile(study, repository, record.id)
    assert "Trial 0 ended otherwise in Optuna" in caplog.text
    assert repository.trial(record.id, 0).outcome == DONE
    assert repository.untold(record.id) == ()


def test_a_deleted_optuna_study_is_not_resumed(
    study: optuna.Study, repository: Repository, record: StudyRecord, url: str
) -> None:
    begin(repository, record.id, _ask(study))
    finish(repository, record.id)
    optuna.delete_study(study_name="night", storage=study._storage)
    again = _open(url)
    with pytest.raises(StorageError, match="has no trial 0: it was deleted") as caught:
        reconcile(again, repository, record.id)
    assert "still be read" in caught.value.hint
    close_optuna_study(again)
