"""The tune command on scripted engines, from its options to its exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import tuning
from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.protocol import Failure
from storage.repository import open_repository
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.forked import Ran
from tests.autotune.study.scripted import (
    BUDGET,
    DESCRIPTION,
    ScriptedEngines,
    small_trace,
    too_slow,
)

pytestmark = pytest.mark.study

Tune = Callable[..., Ran]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autotune: Autotune) -> Tune:
    """Run ``autotune tune`` in a fresh folder, on the given engines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: DESCRIPTION)
    Path("small.jsonl").write_bytes(b"".join(small_trace().lines()))

    def command(engines: ScriptedEngines, *arguments: str) -> Ran:
        monkeypatch.setattr(tuning, "open_supervisor", lambda _settings, _name: engines)
        return autotune(
            "tune", "--model", "tiny", "--trace", "small.jsonl", "--budget", BUDGET,
            "--classes", "", "--warmup-s", "0", "--study-name", "s", *arguments,
        )  # fmt: skip

    return command


def states() -> list[str]:
    with open_repository("sqlite:///autotune.db", create=False) as repository:
        study = repository.study("s")
        return [study.state, *(trial.state for trial in repository.trials(study.id))]


def test_a_job_prints_table_verdict_and_configuration(tune: Tune) -> None:
    ran = tune(ScriptedEngines(), "--trials", "6")
    assert ran.code == 0
    assert "baseline" in ran.out
    assert "max-num-batched-tokens:" in ran.out
    assert "trial 5 (6 of 6) confirm" in ran.err
    assert states() == ["finished", *["complete"] * 6]


def test_json_is_all_that_stdout_carries(tune: Tune) -> None:
    ran = tune(ScriptedEngines(), "--trials", "3", "--format", "json")
    body = json.loads(ran.out)
    assert body["study"] == "s"
    assert len(body["trials"]) == 3
    assert body["verdict"]["candidate"][TOKENS] < 2048


def test_nothing_feasible_exits_with_3(tune: Tune) -> None:
    ran = tune(ScriptedEngines(too_slow), "--trials", "1")
    assert ran.code == 3
    assert "Nothing keeps the budget." in ran.out


def test_the_configuration_file_and_flags_meet(tune: Tune) -> None:
    Path("autotune.yaml").write_text("trials: 5\nengine_args: {enforce_eager: true}\n")
    engines = ScriptedEngines()
    ran = tune(engines, "--config", "autotune.yaml", "--trials", "1", "--engine-arg", f"{SEQS}=64")
    assert ran.code in (0, 3)
    assert engines.started == [{"enforce_eager": True, "model": "tiny", TOKENS: 2048, SEQS: 64}]


def test_the_same_command_again_starts_no_engine(tune: Tune) -> None:
    first = tune(ScriptedEngines(), "--trials", "3")
    idle = ScriptedEngines()
    again = tune(idle, "--trials", "3")
    assert (again.code, again.out) == (first.code, first.out)
    assert idle.started == []


def test_another_job_under_the_same_name_is_refused_with_a_diff(tune: Tune) -> None:
    tune(ScriptedEngines(), "--trials", "1")
    idle = ScriptedEngines()
    ran = tune(idle, "--trials", "1", "--seed", "1", "--engine-arg", "enforce_eager=true")
    assert (ran.code, ran.out) == (2, "")
    assert "engine_args.enforce_eager: None before, True now" in ran.err
    assert "seed: 0 before, 1 now" in ran.err
    assert "another --study-name" in ran.err
    assert idle.started == []
    plan = tune(idle, "--dry-run", "--seed", "1", "--engine-arg", "enforce_eager=true")
    assert (plan.code, plan.out) == (2, "")
    assert plan.err.splitlines()[-2:] == ran.err.splitlines()[-2:]


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_no_running_row_and_is_made_up_for(
    tune: Tune, signum: signal.Signals, code: int
) -> None:
    handler = signal.getsignal(signum)

    def interrupt(number: int) -> None:
        if number == 1:
            signal.raise_signal(signum)

    engines = ScriptedEngines(on_replay=interrupt)
    ran = tune(engines, "--trials", "2")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.endswith(f"{signum.name}: stopped; the same command goes on from here.\n")
    assert not engines.alive
    assert states() == ["interrupted", "complete", "interrupted"]
    assert signal.getsignal(signum) is handler

    resumed = tune(ScriptedEngines(), "--trials", "2")
    assert resumed.code == 0
    assert states() == ["finished", "complete", "interrupted", "complete"]


def failing(failure_class: Any, *, baseline: bool) -> ScriptedEngines:
    def refused(args: Any) -> Failure | None:
        own = args[TOKENS] == 2048
        return Failure(failure_class, "the evidence") if baseline or not own else None

    return ScriptedEngines(refused=refused)


def test_a_baseline_that_does_not_start_exits_with_4(tune: Tune) -> None:
    ran = tune(failing("engine_dead", baseline=True), "--trials", "4")
    assert (ran.code, ran.out) == (4, "")
    assert "error: the baseline does not run here (engine_dead): the evidence" in ran.err
    assert ".log" in ran.err.splitlines()[-1]
    assert states() == ["interrupted", "failed", "failed"]


def test_too_many_failures_exit_with_5(tune: Tune) -> None:
    engines = failing("oom_start", baseline=False)
    options = ("--trials", "9", "--max-failures-in-a-row", "2", "--fidelity", "restart")
    ran = tune(engines, *options)
    assert (ran.code, ran.out) == (5, "")
    assert "error: 2 trials in a row failed with oom_start: the evidence" in ran.err
    assert states() == ["interrupted", "complete", "infeasible", "infeasible"]


def test_a_dry_run_says_whether_the_study_is_new_and_makes_nothing(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model is a name of the hub.
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    before = sorted(Path().iterdir())
    ran = tune(ScriptedEngines(), "--dry-run")
    assert ran.code == 0
    assert ran.out.startswith("study: 's' is new\n")
    assert sorted(Path().iterdir()) == before
    tune(ScriptedEngines(), "--trials", "2")
    ran = tune(ScriptedEngines(), "--dry-run")
    assert ran.out.startswith("study: 's' is finished, 2 trials finished\n")
    body = json.loads(tune(ScriptedEngines(), "--dry-run", "--format", "json").out)
    assert body["study"] == {"name": "s", "state": "finished", "finished_trials": 2}


def test_an_unusable_database_is_known_before_vllm_is_asked(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tuning, "describe_engine")
    Path("autotune.db").write_text("a shopping list\n" * 100)
    before = sorted(Path().iterdir())
    for more in ((), ("--dry-run",)):
        ran = tune(ScriptedEngines(), *more)
        assert (ran.code, ran.out) == (4, "")
        error, hint = ran.err.splitlines()
        assert error.endswith("file is not a database.")
        assert hint == "hint: Choose another file with --storage."
    assert sorted(Path().iterdir()) == before


def test_a_job_that_cannot_be_made_leaves_no_database(tune: Tune) -> None:
    ran = tune(ScriptedEngines(), "--tile", "1000000,8", "--knob", "max_num_batched_tokens=1")
    assert ran.code == 2
    assert not Path("autotune.db").exists()
