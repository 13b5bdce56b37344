"""``autotune tune`` again with another budget: the same trials, a new judgement."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner, Result

from autotune import tuning
from autotune.cli.main import app
from autotune.settings import TuneSettings
from autotune.study.session import Traffic
from objectives.classes import parse_classes
from objectives.limits import parse_budget
from storage.repository import Repository, open_repository
from storage.study import close_optuna_study, open_optuna_study
from tests.autotune.study.scripted import BUDGET, DESCRIPTION, ScriptedEngines, small_trace
from tests.storage.events import kinds_of

Tune = Callable[..., Result]


def stand_in(patch: pytest.MonkeyPatch) -> ScriptedEngines:
    """Return engines that stand in for vLLM, with a trace that needs no file."""
    scripted = ScriptedEngines()

    def traffic(settings: TuneSettings) -> Traffic:
        classes = parse_classes(settings.classes or "")
        return Traffic(small_trace(), parse_budget(settings.budget), classes)

    patch.setattr(tuning, "open_supervisor", lambda _settings, _name: scripted)
    patch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: DESCRIPTION)
    patch.setattr(tuning, "read_traffic", traffic)
    return scripted


def tune_in(folder: Path, budget: str, *options: str) -> Result:
    words = ["tune", "--model", "tiny", "--trace", "small.jsonl", "--study-name", "night"]
    words += ["--storage", f"sqlite:///{folder / 'study.db'}", "--trials", "3"]
    words += ["--log-folder", str(folder / "logs"), "--format", "json"]
    return CliRunner().invoke(app, [*words, "--budget", budget, *options])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The database of a study of three trials, and what its command answered."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        result = tune_in(folder, BUDGET)
    assert result.exit_code == 0, result.output
    return folder / "study.db", result


@pytest.fixture
def first(tuned: tuple[Path, Result], tmp_path: Path) -> Result:
    """What the command answered that made the study, which is in the folder of the test."""
    database, result = tuned
    shutil.copy(database, tmp_path)
    return result


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngines:
    return stand_in(monkeypatch)


@pytest.fixture
def tune(engines: ScriptedEngines, tmp_path: Path) -> Tune:
    return partial(tune_in, tmp_path)


def optuna_constraints(folder: Path) -> list[dict[str, float]]:
    sampler = optuna.samplers.RandomSampler()
    url = f"sqlite:///{folder / 'study.db'}"
    study = open_optuna_study(url, "night", directions=3, sampler=sampler)
    constraints = [trial.constraints for trial in study.trials]
    close_optuna_study(study)
    return constraints


def events(folder: Path) -> list[str]:
    url = f"sqlite:///{folder / 'study.db'}"
    with open_repository(url, create=False) as repository:
        return kinds_of(url, repository.study("night").id)


def test_another_budget_gives_another_verdict_without_a_new_trial(
    tune: Tune, first: Result, engines: ScriptedEngines, tmp_path: Path
) -> None:
    second = tune("ttft_p95:60000 tpot_p95:5 itl_p99@short:5", "--classes", "short:0-512")
    assert second.exit_code == 3, second.output
    assert engines.started == []
    assert ": 3 earlier trials, all that another budget had judged" in second.stderr
    before, after = json.loads(first.stdout), json.loads(second.stdout)
    assert [trial["number"] for trial in after["trials"]] == [0, 1, 2]
    assert before["verdict"]["code"] != after["verdict"]["code"] == "nothing_feasible"
    assert all(trial["metrics"]["itl_p99@short"] > 5 for trial in after["trials"])
    for constraints in optuna_constraints(tmp_path):
        assert constraints["itl_p99@short"] > 0
        assert constraints["ttft_p95"] < 0


def test_the_same_budget_judges_nothing_again(tune: Tune, first: Result, tmp_path: Path) -> None:
    again = tune(BUDGET)
    assert "judged" not in again.stderr
    assert json.loads(again.stdout)["verdict"] == json.loads(first.stdout)["verdict"]
    assert "rejudged" not in events(tmp_path)


@pytest.mark.usefixtures("first")
def test_more_trials_go_on_under_the_new_budget(
    tune: Tune, engines: ScriptedEngines, tmp_path: Path
) -> None:
    result = tune("ttft_p95:110 tpot_p95:25", "--trials", "5")
    assert result.exit_code == 0, result.output
    assert len(engines.started) == 2
    told = optuna_constraints(tmp_path)
    assert [set(each) for each in told] == [{"ttft_p95", "tpot_p95", "failed_requests"}] * 5
    assert told[0]["tpot_p95"] < 0


def test_a_kill_between_two_judgements_is_made_good_by_either_budget(
    tune: Tune, first: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = optuna_constraints(tmp_path)
    store = Repository.rejudge_trial

    def store_and_stop(self: Repository, study_id: int, number: int, **content: Any) -> None:
        store(self, study_id, number, **content)
        if number == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Repository, "rejudge_trial", store_and_stop)
        tune("ttft_p95:110 tpot_p95:25")
    again = tune(BUDGET)
    assert ": 2 earlier trials, all that another budget had judged" in again.stderr
    assert json.loads(again.stdout)["verdict"] == json.loads(first.stdout)["verdict"]
    assert optuna_constraints(tmp_path) == constraints


@pytest.mark.usefixtures("first")
def test_a_budget_that_cannot_be_judged_by_changes_nothing(tune: Tune, tmp_path: Path) -> None:
    """No request is shorter than two tokens here, so the class has no values to be relative to."""
    refused = tune("ttft_p95@tiny:0.9x", "--classes", "tiny:0-2 rest:2-")
    assert refused.exit_code != 0
    with open_repository(f"sqlite:///{tmp_path}/study.db", create=False) as repository:
        assert repository.study(None).spec["budget"] == BUDGET
        assert repository.study(None).state == "interrupted"
