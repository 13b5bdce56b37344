from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import LIVE_LIMITS, THRESHOLD
from autotune.engine.protocol import Failure, TrialFailed
from autotune.study.costs import Fidelity
from autotune.study.job import Job
from autotune.study.stage import Stage
from tests.autotune.study.records import limits
from tests.autotune.study.scripted import BASELINE, ScriptedEngines, job_of

SMALL = limits(512, 16)
LOGS = [Path(f"{number}.log") for number in range(4)]


def live_job(**changes: Any) -> Job:
    """Its ladders end at the baseline, so that this is started as the envelope is."""
    job = job_of(live=True, **changes)
    assert job.lattice.ladders[TOKENS][-1] == BASELINE[TOKENS]
    return job


def failed_at(stage: str, start: int = 0) -> ScriptedEngines:
    return ScriptedEngines(faults={(stage, start): TrialFailed(Failure("hang", "silence"))})


def test_live_trials_share_an_engine_of_the_largest_limits() -> None:
    engines, job = ScriptedEngines(), live_job(engine_args={"enforce_eager": True})
    stage = Stage(engines)
    _, first_s = stage.ready(job, SMALL, "live", LOGS[0])
    assert stage.release(job, SMALL, "live") is None
    _, second_s = stage.ready(job, limits(256, 8), "live", LOGS[1])
    assert (first_s, second_s) == (1.0, None)
    assert engines.started == [{"model": "tiny", "enforce_eager": True, **BASELINE}]
    assert engines.limits == [{**SMALL, THRESHOLD: 0}, {**limits(256, 8), THRESHOLD: 0}]
    assert tuple(engines.limits[0]) == LIVE_LIMITS
    assert engines.logs == LOGS[:1]


def test_a_restart_gets_an_engine_of_its_own_on_which_nothing_was_measured() -> None:
    engines, job = ScriptedEngines(), job_of()
    stage = Stage(engines)
    for log_path in LOGS[:2]:
        _, start_s = stage.ready(job, BASELINE, "restart", log_path)
        assert start_s == 1.0
        assert stage.release(job, BASELINE, "restart") == 0.1
        assert not engines.alive
    assert engines.limits == []
    assert engines.logs == LOGS[:2]


def test_a_restart_takes_the_engine_that_was_calibrated() -> None:
    engines, job = ScriptedEngines(), live_job()
    stage = Stage(engines)
    stage.start(job.envelope(BASELINE), LOGS[0])
    assert stage.log_path(job, BASELINE, "restart") == LOGS[0]
    assert stage.log_path(job, SMALL, "restart") is None
    assert stage.log_path(job, SMALL, "live") == LOGS[0]
    _, start_s = stage.ready(job, BASELINE, "restart", LOGS[1])
    assert start_s is None
    assert engines.limits == []
    # The next restart of the same arguments needs another one; a live trial does not.
    assert stage.log_path(job, BASELINE, "restart") is None
    assert stage.log_path(job, BASELINE, "live") == LOGS[0]
    _, start_s = stage.ready(job, BASELINE, "restart", LOGS[1])
    assert start_s == 1.0
    assert len(engines.started) == 2


def test_a_restart_after_a_live_trial_is_started_with_the_candidate() -> None:
    engines, job = ScriptedEngines(), live_job()
    stage = Stage(engines)
    stage.ready(job, SMALL, "live", LOGS[0])
    stage.ready(job, SMALL, "restart", LOGS[1])
    assert engines.started == [{"model": "tiny", **BASELINE}, {"model": "tiny", **SMALL}]
    assert engines.limited == {}


def test_an_engine_that_live_trials_can_follow_on_is_kept() -> None:
    """The envelope of the baseline is what the baseline itself is started with."""
    for job, kept in ((live_job(), True), (job_of(), False)):
        engines = ScriptedEngines()
        stage = Stage(engines)
        stage.ready(job, BASELINE, "restart", LOGS[0])
        assert stage.release(job, BASELINE, "restart") == (None if kept else 0.1)
        assert engines.alive == kept


def test_another_knob_has_another_envelope() -> None:
    engines = ScriptedEngines()
    job = live_job(engine_args={"enforce_eager": True}, knobs={"enforce_eager": [True, False]})
    stage = Stage(engines)
    stage.ready(job, {**SMALL, "enforce_eager": True}, "live", LOGS[0])
    stage.ready(job, {**SMALL, "enforce_eager": False}, "live", LOGS[1])
    assert [each["enforce_eager"] for each in engines.started] == [True, False]
    assert {each[SEQS] for each in engines.started} == {BASELINE[SEQS]}


def test_the_threshold_for_long_prefills_is_set_live() -> None:
    engines, job = ScriptedEngines(), live_job(engine_args={THRESHOLD: 256})
    Stage(engines).ready(job, SMALL, "live", LOGS[0])
    assert engines.started == [{"model": "tiny", **BASELINE}]
    assert engines.limits == [{**SMALL, THRESHOLD: 256}]


def test_an_engine_whose_limits_cannot_change_serves_restarts_alone() -> None:
    """Whether it was started for a live trial, or for a restart before it."""
    engines, job = ScriptedEngines(obstacle="scheduler_cls is given"), live_job()
    stage = Stage(engines)
    with pytest.raises(TrialFailed, match="limits cannot be changed: scheduler_cls is given"):
        stage.ready(job, SMALL, "live", LOGS[0])
    stage.ready(job, BASELINE, "restart", LOGS[1])
    stage.release(job, BASELINE, "restart")
    with pytest.raises(TrialFailed, match="limits cannot be changed"):
        stage.ready(job, SMALL, "live", LOGS[2])
    assert engines.limits == []
    assert stage.ready(job, SMALL, "restart", LOGS[3])[1] == 1.0


@pytest.mark.parametrize("fidelity", ["live", "restart"])
def test_after_a_start_that_failed_the_next_begins_anew(fidelity: Fidelity) -> None:
    engines, job = failed_at("start"), live_job()
    stage = Stage(engines)
    with pytest.raises(TrialFailed, match="silence"):
        stage.ready(job, SMALL, fidelity, LOGS[0])
    assert stage.log_path(job, SMALL, fidelity) is None
    assert stage.clear() is None
    assert stage.ready(job, SMALL, fidelity, LOGS[1])[1] == 1.0


def test_limits_that_are_not_taken_end_the_trial() -> None:
    engines, job = failed_at("limit"), live_job()
    stage = Stage(engines)
    with pytest.raises(TrialFailed, match="silence"):
        stage.ready(job, SMALL, "live", LOGS[0])
    stage.kill()
    assert not engines.alive
    assert stage.ready(job, SMALL, "live", LOGS[1])[1] == 1.0


def test_an_engine_that_will_not_go_quietly_is_killed() -> None:
    engines, job = failed_at("stop"), live_job()
    stage = Stage(engines)
    stage.ready(job, SMALL, "live", LOGS[0])
    assert stage.clear() is None
    assert (engines.alive, engines.kills) == (False, 1)
    assert stage.clear() is None
    assert engines.kills == 1
