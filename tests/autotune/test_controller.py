from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from autotune import controller as controller_module
from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key, integer
from autotune.engine.protocol import Failure, FailureClass, TrialFailed
from autotune.errors import EnvironmentFault, TooManyFailures
from storage.records import TrialRecord
from storage.repository import Repository
from storage.study import tell_stored
from tests.autotune.study.scripted import (
    BASELINE,
    ScriptedEngines,
    Speed,
    clear_knee,
    job_of,
    opened,
    too_slow,
)
from tests.autotune.study.test_runner import quiet, slow_throughout

pytestmark = pytest.mark.study

FINISHED = ("complete", "infeasible")


class Stopped(BaseException):
    """Stands for a kill: nothing in the controller may catch it."""


def failed(failure_class: FailureClass) -> TrialFailed:
    return TrialFailed(Failure(failure_class, f"the line that shows {failure_class}"))


def measured(rows: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    return [(row.phase, cell_key(row.candidate)) for row in rows if row.state in FINISHED]


def run(folder: Path, engines: ScriptedEngines, **changes: Any) -> tuple[TrialRecord, ...]:
    with opened(folder, job_of(**changes), engines) as running:
        running.controller.run()
        return running.rows()


def test_a_full_study_finds_the_knee(tmp_path: Path) -> None:
    engines = ScriptedEngines()
    with opened(tmp_path, job_of(), engines) as running:
        judgement = running.controller.run()
        rows = running.rows()
        study = running.repository.study("study")
    assert judgement is not None
    assert judgement.chosen is not None
    assert judgement.code in ("knee", "not_converged")
    assert 256 < integer(judgement.chosen.candidate[TOKENS]) < 2048
    phases = ["baseline", *["starts"] * 2, *["search"] * 3, *["confirm"] * 2]
    assert [row.phase for row in rows] == phases
    assert all(row.state == "complete" and row.told for row in rows)
    assert rows[6].candidate == BASELINE
    assert rows[6].replicate_of == 0
    first = next(row.number for row in rows if row.candidate == rows[7].candidate)
    assert rows[7].replicate_of == first
    assert study.state == "finished"
    assert study.verdict is not None
    assert study.verdict["candidate"] == judgement.chosen.candidate


def test_each_engine_gets_exactly_the_exported_arguments(tmp_path: Path) -> None:
    engines = ScriptedEngines()
    job = job_of(trials=3, engine_args={"enforce_eager": True, SEQS: 64})
    with opened(tmp_path, job, engines) as running:
        running.controller.run()
        rows = running.rows()
    expected = [{"enforce_eager": True, "model": "tiny", **row.candidate} for row in rows]
    assert engines.started == expected
    assert [str(log) for log in engines.logs] == [row.log_path for row in rows]
    assert [plan.salt for plan in engines.plans] == ["trial-0", "trial-1", "trial-2"]
    assert {plan.warmup_requests for plan in engines.plans} == {20}
    assert not engines.alive


def test_a_study_over_lists_goes_on_where_it_was_cut_short(tmp_path: Path) -> None:
    lists = {"knobs": {"sizes": [[1, 2], [1, 2, 4]]}, "engine_args": {"sizes": [1, 2]}}
    for trials in (4, 8):
        engines = ScriptedEngines()
        rows = run(tmp_path, engines, trials=trials, **lists)
        assert len(rows) == trials
        assert all(isinstance(each["sizes"], list) for each in engines.started)
    assert {tuple(row.candidate["sizes"]) for row in rows} == {(1, 2), (1, 2, 4)}
    searched = [cell_key(row.candidate) for row in rows if row.phase in ("starts", "search")]
    assert len(set(searched)) == len(searched), "no candidate is taken for another"


def test_what_a_trial_stores(tmp_path: Path) -> None:
    with opened(tmp_path, job_of(trials=1), ScriptedEngines()) as running:
        running.controller.run()
        (row,) = running.rows()
        samples = running.repository.samples(running.study_id, 0)
        assert running.watcher.begun_trials == [(0, "baseline", 1, 1)]
        assert running.watcher.finished_trials == [(0, "complete")]
        assert [body["stage"] for body in running.watcher.reports] == ["replay", "stop"]
    assert row.fidelity == "restart"
    assert row.timings == {
        "start_s": 1.0,
        "turnaround_s": None,
        "warmup_s": 0.5,
        "replay_s": 4.0,
        "stop_s": 0.1,
    }
    assert row.engine is not None
    assert row.engine["kv_cache_tokens"] == 65536
    assert row.engine["load"]["peak_running"] == 30
    assert row.metrics is not None
    assert row.metrics["ttft_p50"] == pytest.approx(clear_knee(BASELINE).ttft_ms, rel=0.01)
    assert row.outcome is not None
    assert row.outcome.constraints["tpot_p95"] > 0 > row.outcome.constraints["ttft_p95"]
    assert row.outcome.constraints["failed_requests"] == 0
    assert samples["scheduled_s"].size == samples["sent_s"].size == 80
    assert samples["iteration_running"].tolist() == [30] * 10
    assert row.log_path is not None
    assert Path(row.log_path).parent.is_dir()


def test_out_of_memory_at_start_is_told_as_infeasible(tmp_path: Path) -> None:
    def refused(candidate: Candidate) -> Failure | None:
        own = (candidate[TOKENS], candidate[SEQS]) == (2048, 64)
        return None if own else Failure("oom_start", "CUDA out of memory")

    engines = ScriptedEngines(refused=refused)
    with opened(tmp_path, job_of(trials=3), engines) as running:
        running.controller.run()
        rows = running.rows()
        trial = running.optuna_study.get_trials()[1]
    assert [row.state for row in rows] == ["complete", "infeasible", "infeasible"]
    assert rows[1].failure_class == "oom_start"
    assert rows[1].failure_evidence == "CUDA out of memory"
    assert rows[1].metrics is None
    assert trial.state is optuna.trial.TrialState.COMPLETE
    assert trial.values[:2] == [3000.0, 160.0]
    assert trial.constraints == {"failure": 30.0}
    assert engines.kills == 2


def test_a_dead_engine_is_tried_once_more(tmp_path: Path) -> None:
    engines = ScriptedEngines(faults={("replay", 1): failed("engine_dead")})
    rows = run(tmp_path, engines, trials=2)
    assert [row.state for row in rows] == ["complete", "failed", "complete"]
    assert rows[1].candidate == rows[2].candidate
    assert rows[2].replicate_of == 1
    assert rows[1].outcome is not None
    assert rows[1].outcome.state == "fail"


def test_a_cell_that_keeps_dying_is_left_alone(tmp_path: Path) -> None:
    faults = {("replay", n): failed("engine_dead") for n in (1, 2)}
    rows = run(tmp_path, ScriptedEngines(faults=faults), trials=2)
    assert [row.state for row in rows] == ["complete", "failed", "failed", "complete"]
    assert cell_key(rows[3].candidate) != cell_key(rows[1].candidate)


@pytest.mark.parametrize(
    ("classes", "starts"),
    [(["engine_dead", "engine_dead"], 2), (["engine_dead", "hang"], 2), (["oom_start"], 1)],
)
def test_a_baseline_that_does_not_run_ends_the_study(
    tmp_path: Path, classes: list[FailureClass], starts: int
) -> None:
    faults = {("start", n): failed(each) for n, each in enumerate(classes)}
    engines = ScriptedEngines(faults=faults)
    with pytest.raises(EnvironmentFault) as caught:
        run(tmp_path, engines)
    assert len(engines.started) == starts
    assert caught.value.exit_code == 4
    assert classes[-1] in caught.value.message
    assert f"trial-{starts - 1:04d}.log" in caught.value.hint


def test_a_baseline_that_ran_on_a_busy_machine_is_no_fault_of_the_engine(tmp_path: Path) -> None:
    late = ScriptedEngines(lambda _: Speed(90.0, 9.0, send_lag_s=0.2))
    with pytest.raises(EnvironmentFault) as caught:
        run(tmp_path, late, trials=2)
    assert len(late.plans) == 2
    assert caught.value.exit_code == 4
    assert caught.value.message.startswith(
        "the baseline ran, but the machine was too busy to trust what was measured "
        "(client_bound): requests left up to 200.0 ms late"
    )
    assert caught.value.hint == controller_module.BUSY_HINT
    rows = run(tmp_path, ScriptedEngines(), trials=2)
    assert [row.state for row in rows] == ["invalid", "invalid", "complete", "complete"]


def test_many_replays_in_a_row_that_do_not_count_blame_no_engine(tmp_path: Path) -> None:
    lags = iter([0.0, *[0.2] * 9])
    late = ScriptedEngines(lambda _: Speed(90.0, 9.0, send_lag_s=next(lags)))
    with pytest.raises(TooManyFailures) as caught:
        run(tmp_path, late, max_failures_in_a_row=3)
    assert "3 trials in a row ran and do not count: client_bound" in caught.value.message
    assert caught.value.hint == controller_module.BUSY_HINT


def test_the_baseline_is_measured_first_once_the_machine_is_mended(tmp_path: Path) -> None:
    broken = ScriptedEngines(refused=lambda _: Failure("engine_dead", "no driver"))
    with pytest.raises(EnvironmentFault):
        run(tmp_path, broken, trials=3)
    rows = run(tmp_path, ScriptedEngines(), trials=3)
    assert [row.phase for row in rows] == ["baseline"] * 3 + ["starts", "search"]
    assert rows[2].state == "complete"


def test_too_many_failures_of_one_class_in_a_row(tmp_path: Path) -> None:
    faults = {("start", n): failed("hang") for n in range(1, 9)}
    with pytest.raises(TooManyFailures) as caught:
        run(tmp_path, ScriptedEngines(faults=faults), max_failures_in_a_row=3)
    assert caught.value.exit_code == 5
    assert "3 trials in a row failed with hang" in caught.value.message
    assert "trial-0003.log" in caught.value.hint


def test_failures_that_alternate_do_not_end_the_study(tmp_path: Path) -> None:
    faults = {("start", n): failed("hang" if n % 2 else "engine_dead") for n in range(1, 5)}
    rows = run(tmp_path, ScriptedEngines(faults=faults), trials=3, max_failures_in_a_row=2)
    assert sum(row.state == "complete" for row in rows) == 3


def test_a_client_that_sent_late_does_not_count(tmp_path: Path) -> None:
    """Lag is allowed up to a tenth of the TTFT limit of 300 ms."""
    lags = iter([0.0, 0.2, 0.02])

    def truth(candidate: Candidate) -> Speed:
        speed = clear_knee(candidate)
        return Speed(speed.ttft_ms, speed.tpot_ms, send_lag_s=next(lags))

    rows = run(tmp_path, ScriptedEngines(truth), trials=2)
    assert [row.state for row in rows] == ["complete", "invalid", "complete"]
    assert rows[1].failure_class == "client_bound"
    assert rows[1].candidate == rows[2].candidate
    assert rows[1].outcome is not None
    assert rows[1].outcome.state == "fail"


def test_a_replay_that_does_not_count_says_nothing_of_the_pace(tmp_path: Path) -> None:
    """A starved client leaves the engine more of the processors than it has otherwise."""
    lags = iter([0.2, 0.0, 0.0])

    def truth(candidate: Candidate) -> Speed:
        speed = clear_knee(candidate)
        return Speed(speed.ttft_ms, speed.tpot_ms, send_lag_s=next(lags))

    engines = ScriptedEngines(
        truth, steps=lambda _, number: slow_throughout(number) if number else quiet(number)
    )
    rows = run(tmp_path, engines, trials=1)
    assert [row.state for row in rows] == ["invalid", "complete"]
    assert rows[0].failure_class == "client_bound"


def test_failed_requests_make_a_trial_infeasible_and_finite_for_optuna(tmp_path: Path) -> None:
    def truth(candidate: Candidate) -> Speed:
        speed = clear_knee(candidate)
        return Speed(speed.ttft_ms, speed.tpot_ms, failed=20)

    with opened(tmp_path, job_of(trials=2), ScriptedEngines(truth)) as running:
        judgement = running.controller.run()
        row = running.rows()[0]
    assert judgement is not None
    assert judgement.code == "nothing_feasible"
    assert row.outcome is not None
    assert row.outcome.constraints["failed_requests"] == pytest.approx(0.25)
    assert row.outcome.values is not None
    assert row.outcome.values[0] == 3000.0
    assert row.metrics is not None
    assert row.metrics["ttft_p95"] == float("inf")


def test_nothing_feasible_names_the_nearest(tmp_path: Path) -> None:
    with opened(tmp_path, job_of(trials=3), ScriptedEngines(too_slow)) as running:
        judgement = running.controller.run()
    assert judgement is not None
    assert judgement.code == "nothing_feasible"
    assert judgement.chosen is None
    assert judgement.nearest is not None


def test_relative_limits_follow_the_baseline(tmp_path: Path) -> None:
    budget = "tpot_p95:0.8x ttft_p95:3x"
    with opened(tmp_path, job_of(trials=6, budget=budget), ScriptedEngines()) as running:
        judgement = running.controller.run()
        rows = running.rows()
    assert judgement is not None
    assert judgement.budget.limits[0].limit_ms == pytest.approx(0.8 * 19.65, rel=0.05)
    assert rows[0].outcome is not None
    assert rows[0].outcome.constraints["tpot_p95"] == pytest.approx(0.25)
    assert judgement.chosen is not None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[TrialRecord, ...]]:
    """A study of six trials that nothing has interrupted: its database and its rows."""
    folder = tmp_path_factory.mktemp("undisturbed")
    rows = run(folder, ScriptedEngines(), trials=6)
    return folder / "study.db", rows


@pytest.fixture
def before(
    undisturbed: tuple[Path, tuple[TrialRecord, ...]], tmp_path: Path
) -> tuple[TrialRecord, ...]:
    """The rows of a study of six trials, which is in the folder of the test."""
    database, rows = undisturbed
    shutil.copy(database, tmp_path)
    return rows


@pytest.fixture
def whole(undisturbed: tuple[Path, tuple[TrialRecord, ...]]) -> list[tuple[str, str]]:
    """What a study of six trials measures if nothing interrupts it."""
    return measured(undisturbed[1])


def test_a_finished_study_runs_nothing_more(
    tmp_path: Path, before: tuple[TrialRecord, ...]
) -> None:
    idle = ScriptedEngines()
    assert run(tmp_path, idle, trials=6) == before
    assert idle.started == []


def test_more_trials_go_on_where_it_ended(tmp_path: Path, before: tuple[TrialRecord, ...]) -> None:
    engines = ScriptedEngines()
    after = run(tmp_path, engines, trials=8)
    assert after[:6] == before
    assert len(after) == 8
    assert len(engines.started) == 2


@pytest.mark.parametrize(("place", "number"), [("start", 0), ("replay", 3), ("stop", 2)])
def test_a_resumed_study_measures_the_same(
    tmp_path: Path, whole: list[tuple[str, str]], place: str, number: int
) -> None:
    engines = ScriptedEngines(faults={(place, number): Stopped()})
    with pytest.raises(Stopped):
        run(tmp_path, engines, trials=6)
    engines.kill()
    engines.faults = {}
    resumed = run(tmp_path, engines, trials=6)
    assert resumed[number].state == "interrupted"
    assert measured(resumed) == whole
    # The prompts and the luck of a trial are those that it would have had.
    assert {plan.salt for plan in engines.plans} == {f"trial-{n}" for n in range(6)}


@pytest.mark.parametrize("name", ["begin_trial", "mark_told"])
def test_a_kill_between_two_writes_costs_no_measurement(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: list[tuple[str, str]],
    name: str,
) -> None:
    """Before our row of a trial is written, and after Optuna was told but before we know it."""

    def stop_at(self: Repository, study_id: int, number: int, **values: object) -> None:
        if number == 3:
            raise Stopped
        original(self, study_id, number, **values)

    original = getattr(Repository, name)
    engines = ScriptedEngines()
    with monkeypatch.context() as patched:
        patched.setattr(Repository, name, stop_at)
        with pytest.raises(Stopped):
            run(tmp_path, engines, trials=6)
    resumed = run(tmp_path, engines, trials=6)
    assert len(engines.started) == 6
    assert all(row.told for row in resumed)
    assert measured(resumed) == whole


def test_a_measurement_that_was_not_told_is_told_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[tuple[str, str]]
) -> None:
    def stop_at(
        study: optuna.Study, repository: Repository, study_id: int, trial_number: int
    ) -> bool:
        if trial_number == 3:
            raise Stopped
        return tell_stored(study, repository, study_id, trial_number)

    engines = ScriptedEngines()
    with monkeypatch.context() as patched:
        patched.setattr(controller_module, "tell_stored", stop_at)
        with pytest.raises(Stopped):
            run(tmp_path, engines, trials=6)
    resumed = run(tmp_path, engines, trials=6)
    assert len(engines.started) == 6
    assert all(row.told for row in resumed)
    assert measured(resumed) == whole


def test_an_engine_that_will_not_stop_costs_no_measurement(tmp_path: Path) -> None:
    engines = ScriptedEngines(faults={("stop", 0): failed("hang")})
    rows = run(tmp_path, engines, trials=2)
    assert [row.state for row in rows] == ["complete", "complete"]
    assert rows[0].timings is not None
    assert rows[0].timings["stop_s"] is None
    assert engines.kills >= 1
