"""What is known of a study before anything is made."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from autotune.study.earlier import check_storage, earlier_study
from storage.errors import StorageError, StorageUnavailable, UnusableName
from tests.autotune.study.scripted import ScriptedEngines, job_of, opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


def test_where_there_is_no_database_none_is_made(url: str, tmp_path: Path) -> None:
    check_storage(url, "night")
    assert earlier_study(url, "night") is None
    assert list(tmp_path.iterdir()) == []


def test_a_stored_study_says_how_far_it_is(url: str, tmp_path: Path) -> None:
    job = job_of(trials=2)
    with opened(tmp_path, job, ScriptedEngines(), name="night") as running:
        running.controller.run()
    check_storage(url, "night")
    earlier = earlier_study(url, "night")
    assert earlier is not None
    assert (earlier.study.state, earlier.finished) == ("finished", 2)
    assert earlier.peak_concurrency == job.peak_concurrency
    check_storage(url, "another")
    assert earlier_study(url, "another") is None


def test_what_would_fail_later_fails_here(url: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableName):
        check_storage(url, "a\nb")
    with pytest.raises(StorageUnavailable, match="is no folder"):
        check_storage(f"sqlite:///{tmp_path}/none/study.db", "night")
    storage = optuna.storages.RDBStorage(url)
    optuna.create_study(study_name="night", storage=storage, directions=["minimize"])
    storage.remove_session()
    storage.engine.dispose()
    with pytest.raises(StorageError, match="has 1 objectives, not 3"):
        check_storage(url, "night")
    check_storage(url, "another")
