"""A controller killed at any step loses at most the running trial, and Optuna no result."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from optuna.samplers import TPESampler

from storage.records import TrialRecord
from storage.repository import open_repository
from storage.study import Reconciled, close_optuna_study, open_optuna_study, reconcile
from tests.storage.crash_script import DONE, SAMPLES

pytestmark = pytest.mark.wire

_ROOT: Final = Path(__file__).resolve().parents[2]
_SCRIPT: Final = [sys.executable, "-W", "error", "-m", "tests.storage.crash_script"]
_WRITERS: Final = 2
_TRIALS: Final = 50


class Expected(NamedTuple):
    """What reopening finds: what it did, our states, and Optuna's."""

    did: Reconciled
    ours: list[str]
    optuna: list[str]


# Two trials were enqueued; all but "done" die in the first.
_POINTS: Final = {
    "open": Expected(Reconciled(), [], []),
    "enqueued": Expected(Reconciled(cleared=(0, 1)), [], ["FAIL", "FAIL"]),
    "asked": Expected(Reconciled(orphaned=(0,), cleared=(1,)), [], ["FAIL", "FAIL"]),
    "begun": Expected(
        Reconciled(interrupted=(0,), cleared=(1,)), ["interrupted"], ["FAIL", "FAIL"]
    ),
    "finishing": Expected(
        Reconciled(interrupted=(0,), cleared=(1,)), ["interrupted"], ["FAIL", "FAIL"]
    ),
    "finished": Expected(Reconciled(told=(0,), cleared=(1,)), ["complete"], ["COMPLETE", "FAIL"]),
    "telling": Expected(Reconciled(told=(0,), cleared=(1,)), ["complete"], ["COMPLETE", "FAIL"]),
    "told": Expected(Reconciled(told=(0,), cleared=(1,)), ["complete"], ["COMPLETE", "FAIL"]),
    "done": Expected(Reconciled(), ["complete", "complete"], ["COMPLETE", "COMPLETE"]),
}


@pytest.fixture(scope="module")
def crashed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crashed")
    for point in _POINTS:
        shutil.copy(template, folder / f"{point}.db")
    words = [str(folder), str(_WRITERS), str(_TRIALS), *_POINTS]
    run = subprocess.run([*_SCRIPT, *words], check=True, capture_output=True, text=True, cwd=_ROOT)
    assert run.stderr == ""
    statuses = [int(word) for word in run.stdout.split()]
    assert statuses == [signal.SIGKILL] * len(_POINTS) + [0] * _WRITERS
    return folder


@pytest.mark.parametrize(("point", "expected"), _POINTS.items(), ids=_POINTS.keys())
def test_a_killed_controller(crashed: Path, point: str, expected: Expected) -> None:
    url = f"sqlite:///{crashed / point}.db"
    with open_repository(url, create=False) as repository:
        record = repository.study(None)
        study = open_optuna_study(url, "night", directions=2, sampler=TPESampler(seed=1))
        did = reconcile(study, repository, record.id)
        again = reconcile(study, repository, record.id)
        trials = repository.trials(record.id)
        sampled = [repository.samples(record.id, trial.number).keys() for trial in trials]
        told = study.trials
        close_optuna_study(study)
    assert (did, again) == (expected.did, Reconciled())
    assert [trial.state for trial in trials] == expected.ours
    assert [trial.state.name for trial in told] == expected.optuna
    assert all(trial.told for trial in trials)
    assert sampled == [_expected_samples(trial) for trial in trials]
    for trial in trials:
        if trial.state == "complete":
            assert told[trial.number].values == list(DONE.values or ())
            assert told[trial.number].constraints == DONE.constraints


def _expected_samples(trial: TrialRecord) -> set[str]:
    return set(SAMPLES) if trial.state == "complete" else set()


def test_two_writers_lose_nothing(crashed: Path) -> None:
    with open_repository(f"sqlite:///{crashed / 'race.db'}", create=False) as repository:
        (summary,) = repository.studies()
        trials = repository.trials(summary.id)
        assert [trial.number for trial in trials] == list(range(100))
        assert [trial.candidate["writer"] for trial in trials] == [0] * 50 + [1] * 50
        values = [trial.outcome and trial.outcome.values for trial in trials]
        assert values == [(float(number),) for number in range(100)]
        assert repository.samples(summary.id, 99)["n"].tolist() == [99]
