from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.protocol import Failure, TrialFailed
from autotune.study.view import (
    StudyView,
    calibration_of,
    headline,
    is_calibrated,
    load_view,
    make_export,
    trial_json,
)
from storage.errors import UnknownStudy
from tests.autotune.study.records import record, study_record, with_best
from tests.autotune.study.scripted import BASELINE, Running, ScriptedEngines, job_of, opened


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Baseline, an infeasible trial, a failed one and its repetition."""
    faults = {
        ("start", 1): TrialFailed(Failure("oom_start", "out of memory")),
        ("replay", 2): TrialFailed(Failure("engine_dead", "gone")),
    }
    job = job_of(trials=3, budget="ttft_p95:900 tpot_p95:16", engine_args={"enforce_eager": True})
    folder = tmp_path_factory.mktemp("view")
    with opened(folder, job, ScriptedEngines(faults=faults)) as study:
        study.controller.run()
        yield study


@pytest.fixture(scope="module")
def view(running: Running) -> StudyView:
    return load_view(running.repository, "study")


def test_a_view_judges_as_the_controller_did(running: Running, view: StudyView) -> None:
    own = running.controller.judge()
    assert own is not None
    assert view.judgement is not None
    assert view.judgement.code == own.code
    assert view.judgement.winner == own.winner


def test_the_latest_study_is_the_default(running: Running) -> None:
    assert load_view(running.repository, None).study.name == "study"
    with pytest.raises(UnknownStudy):
        load_view(running.repository, "studie")


def test_trials_by_state(view: StudyView) -> None:
    shown = [trial_json(view, trial) for trial in view.trials]
    assert [(each["state"], each["feasible"]) for each in shown] == [
        ("complete", False),
        ("infeasible", False),
        ("failed", None),
        ("complete", True),
    ]
    assert [each["failure"] for each in shown] == [
        None,
        {"class": "oom_start", "evidence": "out of memory"},
        {"class": "engine_dead", "evidence": "gone"},
        None,
    ]
    assert shown[3]["replicate_of"] == 2
    assert shown[2]["metrics"] is shown[2]["diagnosis"] is shown[2]["timings"] is None


def test_metrics_are_shown_as_measured(view: StudyView) -> None:
    shown = [trial_json(view, trial)["metrics"] for trial in view.trials]
    assert shown == [trial.metrics for trial in view.trials]
    assert shown[0]["utilization"] is None
    assert not is_calibrated(view.study)


def test_headlines_tell_work_as_it_is_scored(view: StudyView) -> None:
    assert headline(view.study)[-1] == "tokens_per_busy_s"
    calibrated = study_record(calibration=with_best(6e14))
    assert headline(calibrated)[-1] == "utilization"
    uncounted = study_record(calibration=with_best(None))
    assert not is_calibrated(uncounted)
    assert headline(uncounted)[-1] == "tokens_per_busy_s"


def test_the_calibration_is_read_back() -> None:
    assert calibration_of(study_record()) is None
    assert calibration_of(study_record(calibration=with_best(6e14))) == with_best(6e14)


def test_a_trial_is_not_judged_before_there_is_a_judgement(view: StudyView) -> None:
    early = StudyView(view.study, (), None)
    assert trial_json(early, record(0, metrics={"ttft_p95": 1.0}))["feasible"] is None


def test_an_export_is_what_was_measured(view: StudyView) -> None:
    assert view.judgement is not None
    assert view.judgement.chosen is not None
    export = make_export(view, view.judgement.chosen)
    candidate = view.trials[3].candidate
    assert export.model == "tiny"
    assert export.candidate == candidate
    assert export.engine_args == {"enforce_eager": True, **candidate}
    assert set(candidate) == {TOKENS, SEQS}
    assert export.provenance["trials"] == [3]
    assert export.provenance["kv_cache_tokens"] == 65536
    assert export.provenance["measured_at"] == view.trials[3].finished_at
    assert export.baseline is not None
    baseline = view.trials[0]
    assert baseline.candidate == BASELINE
    assert baseline.metrics is not None
    assert export.baseline["ttft_p95"] == baseline.metrics["ttft_p95"]
    assert export.verdict is not None
    assert export.verdict["candidate"] == candidate
