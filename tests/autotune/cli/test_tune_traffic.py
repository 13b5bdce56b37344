"""What ``tune`` makes of unusual traffic, with engines that follow a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autotune import tuning
from autotune.cli.main import app
from autotune.engine.supervisor import Description
from autotune.errors import TraceError, UsageError
from storage.errors import FingerprintMismatch
from tests.autotune.study.scripted import FLAGS, INFO, ScriptedEngines, small_trace

pytestmark = pytest.mark.wire

Tune = Callable[..., Result]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngines:
    scripted = ScriptedEngines()
    info = replace(INFO, resolved={**INFO.resolved, "max_model_len": 900})
    description = Description(info, FLAGS)
    monkeypatch.setattr(tuning, "open_supervisor", lambda _settings, _name: scripted)
    monkeypatch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: description)
    return scripted


@pytest.fixture
def tune(engines: ScriptedEngines, tmp_path: Path) -> Tune:
    trace = tmp_path / "small.jsonl"
    trace.write_bytes(b"".join(small_trace().lines()))

    def run(*options: str) -> Result:
        words = ["tune", "--model", "tiny", "--trace", str(trace), "--study-name", "night"]
        words += ["--storage", f"sqlite:///{tmp_path / 'study.db'}", "--trials", "3"]
        words += ["--log-folder", str(tmp_path / "logs"), "--format", "json", "--classes", ""]
        return CliRunner().invoke(app, [*words, *options])

    return run


def test_what_is_too_long_is_known_before_the_first_start(
    tune: Tune, engines: ScriptedEngines
) -> None:
    error = tune().exception
    assert isinstance(error, TraceError)
    assert error.message.startswith("10 of 80 requests are longer than the engine's")
    assert engines.started == []


def test_every_trial_replays_the_same_part(tune: Tune, tmp_path: Path) -> None:
    first = tune("--too-long", "skip")
    assert first.exit_code == 0, first.output
    assert "Requests longer than max_model_len 900, left out: 10." in first.stderr
    trials = json.loads(first.stdout)["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 3


def test_another_policy_is_another_study(tune: Tune, engines: ScriptedEngines) -> None:
    assert tune("--too-long", "skip").exit_code == 0
    error = tune("--too-long", "truncate").exception
    assert isinstance(error, FingerprintMismatch)
    assert "too_long: 'skip' before, 'truncate' now" in error.message
    assert {key for key, _, _ in error.diff} == {"trace", "too_long"}
    assert len(engines.started) == 3


def test_another_policy_for_traffic_that_fits_is_the_same_study(
    tune: Tune, engines: ScriptedEngines
) -> None:
    assert tune("--window", "0:0.34", "--too-long", "skip").exit_code == 0
    assert tune("--window", "0:0.34", "--too-long", "error").exit_code == 0
    assert len(engines.started) == 3


def test_a_study_of_one_request(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "small.jsonl").write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 5}\n'
    )
    result = tune("--budget", "ttft_p95:900 tpot_p95:90 itl_p99:90")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert [trial["state"] for trial in body["trials"]] == ["complete"] * 3
    assert body["verdict"]["kept"] is None


def test_a_study_of_requests_at_one_instant(tune: Tune, tmp_path: Path) -> None:
    row = '{"timestamp": 0, "input_length": 600, "output_length": 5}\n'
    (tmp_path / "small.jsonl").write_text(row * 20)
    assert tune("--budget", "ttft_p95:900 tpot_p95:90").exit_code == 0


def test_another_load_is_another_study(
    tune: Tune, engines: ScriptedEngines, tmp_path: Path
) -> None:
    loaded = ("--window", "0:0.34", "--load", "2")
    first = tune(*loaded)
    assert first.exit_code == 0, first.output
    assert "Load 2 by superposing copies" in first.stderr
    error = tune("--window", "0:0.34").exception
    assert isinstance(error, FingerprintMismatch)
    assert "load: 2.0 before, 1.0 now" in error.message
    assert {key for key, _, _ in error.diff} == {"trace", "load"}
    assert tune(*loaded).exit_code == 0
    assert len(engines.started) == 3

    def shown(*words: str) -> str:
        return CliRunner().invoke(app, [*words, "--storage", storage]).stdout

    storage = f"sqlite:///{tmp_path / 'study.db'}"
    assert "3 of 3 trials, at load 2 by superposing copies." in shown("show")
    told = json.loads(shown("show", "--format", "json"))
    exported = json.loads(shown("best", "--format", "json"))["provenance"]
    for each in (told, exported):
        assert (each["load"], each["load_method"]) == (2.0, "superpose")


def test_another_holdout_is_another_study(tune: Tune, engines: ScriptedEngines) -> None:
    first = tune("--too-long", "skip", "--holdout", "20%")
    assert first.exit_code == 0, first.output
    assert "Requests longer than max_model_len 900, left out: 8." in first.stderr
    assert "Held out: Requests longer than max_model_len 900, left out: 2." in first.stderr
    assert json.loads(first.stdout)["verdict"]["holdout"]["requests"] == 14
    count = len(engines.started)
    error = tune("--too-long", "skip").exception
    assert isinstance(error, FingerprintMismatch)
    assert "holdout: '20%' before, 'none' now" in error.message
    assert len(engines.started) == count


def test_a_holdout_without_what_is_limited_is_refused(
    tune: Tune, engines: ScriptedEngines
) -> None:
    error = tune(
        *("--window", "0:0.39", "--holdout", "5%"),
        *("--classes", "short:0-500 long:500-", "--budget", "ttft_p95@short:300"),
    ).exception
    assert isinstance(error, UsageError)
    assert "the part that is held out has no request of class 'short'" in error.message
    assert engines.started == []


@pytest.mark.parametrize("share", ["20", "0%", "51%", "-20%", "all", "1e1%", ""])
def test_no_share_at_all_is_refused(tune: Tune, engines: ScriptedEngines, share: str) -> None:
    error = tune("--holdout", share).exception
    assert isinstance(error, UsageError)
    assert error.message == "--holdout: must be a percentage from 1% to 50%, such as 20%"
    assert engines.started == []


def test_a_load_of_one_is_the_traffic_as_recorded(tune: Tune, engines: ScriptedEngines) -> None:
    assert tune("--window", "0:0.34").exit_code == 0
    assert tune("--window", "0:0.34", "--load", "1").exit_code == 0
    assert len(engines.started) == 3


@pytest.mark.parametrize("load", ["0", "-1", "nan", "inf", "1e9"])
def test_no_load_at_all_is_refused(tune: Tune, engines: ScriptedEngines, load: str) -> None:
    error = tune("--load", load).exception
    assert isinstance(error, UsageError)
    assert error.message.startswith("--load: ")
    assert engines.started == []
