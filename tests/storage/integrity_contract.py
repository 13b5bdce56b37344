"""What is said of a database's soundness: subclass with a ``url`` fixture of its own."""

from __future__ import annotations

from collections.abc import Iterator

import optuna
import pytest

from storage.integrity import Integrity, integrity
from storage.records import StudyRecord
from storage.repository import Repository, open_repository
from storage.study import close_optuna_study, open_optuna_study, tell_stored
from tests.storage.contract import begin, finish


class IntegrityContract:
    @pytest.fixture
    def repository(self, url: str) -> Iterator[Repository]:
        with open_repository(url) as opened:
            yield opened

    @pytest.fixture
    def study(self, repository: Repository) -> StudyRecord:
        return repository.open_study("night", fingerprint={}, spec={})

    @pytest.fixture
    def index(self, url: str) -> Iterator[optuna.Study]:
        sampler = optuna.samplers.RandomSampler()
        opened = open_optuna_study(url, "night", directions=2, sampler=sampler)
        yield opened
        close_optuna_study(opened)

    def test_a_sound_database(
        self, repository: Repository, study: StudyRecord, index: optuna.Study, url: str
    ) -> None:
        for number in range(2):
            begin(repository, study.id, index.ask().number)
            finish(repository, study.id, number)
            tell_stored(index, repository, study.id, number)
        index.tell(index.ask(), state=optuna.trial.TrialState.FAIL)
        begin(repository, study.id, index.ask().number)
        found = integrity(url)
        assert found.sound
        assert found == Integrity(found.damage)
        assert found.faults == ()

    def test_what_one_side_lacks_is_counted(
        self, repository: Repository, study: StudyRecord, index: optuna.Study, url: str
    ) -> None:
        index.tell(index.ask(), [1.0, 2.0])
        for number in (5, 6):
            begin(repository, study.id, number)
            finish(repository, study.id, number)
            repository.mark_told(study.id, number)
        found = integrity(url)
        assert (found.rows_without_optuna, found.optuna_without_row) == (2, 1)
        assert not found.sound
        assert found.faults == (
            "2 trials that Optuna was told of are missing there",
            "1 trials have a result in Optuna and no row here",
        )

    def test_told_without_an_outcome(
        self, repository: Repository, study: StudyRecord, url: str
    ) -> None:
        begin(repository, study.id)
        with repository.writing() as connection:
            connection.exec_driver_sql("UPDATE autotune_trial SET told = true")
        assert integrity(url).told_without_outcome == 1
