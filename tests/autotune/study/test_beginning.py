from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.protocol import Failure, FailureClass, TrialFailed
from autotune.engine.supervisor import Description
from autotune.study.beginning import PASSING, first_job, searches_live
from autotune.study.job import Job
from autotune.study.plan import CONFIRM_FROM
from autotune.study.session import log_folder
from autotune.study.stage import Stage
from tests.autotune.study.scripted import (
    BASELINE,
    DESCRIPTION,
    FLAGS,
    INFO,
    ScriptedEngines,
    job_of,
    settings_of,
)

OBSTACLE = "scheduler_cls is given"
HINDERED = Description(replace(INFO, live_obstacle=OBSTACLE), FLAGS)
UNUSABLE = "the engine of the largest limits cannot be used"
OUT_OF_MEMORY = TrialFailed(Failure("oom_start", "CUDA out of memory"))


class Heard:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stages: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, body: Mapping[str, Any]) -> None:
        self.stages.append(body["stage"])


def begun(
    engines: ScriptedEngines, described: Description = DESCRIPTION, **changes: Any
) -> tuple[Job, Job, Stage, Heard]:
    """The job before and after its beginning, its stage and what was heard of it."""
    settings = settings_of(**changes)
    live = searches_live(settings, described.info)
    before = job_of(live=live, described=described, **changes)
    stage, heard = Stage(engines), Heard()
    after = first_job(before, described, stage, engines, listener=heard, name="night")
    return before, after, stage, heard


@pytest.mark.parametrize(
    ("changes", "obstacle", "live"),
    [
        ({}, None, True),
        ({"trials": CONFIRM_FROM}, None, True),
        ({"trials": CONFIRM_FROM - 1}, None, False),
        ({"fidelity": "restart"}, None, False),
        ({"calibrate": False}, None, True),
        ({}, OBSTACLE, False),
    ],
)
def test_when_a_search_is_live(changes: Any, obstacle: str | None, live: bool) -> None:
    info = replace(INFO, live_obstacle=obstacle)
    assert searches_live(settings_of(**changes), info) == live


def test_a_study_begins_with_the_step_times_of_the_largest_limits(tmp_path: Path) -> None:
    engines = ScriptedEngines()
    before, after, stage, heard = begun(engines, log_folder=tmp_path)
    assert heard.said == ["calibrating: starting the engine of the largest limits"]
    assert heard.stages == ["calibrate"]
    assert engines.started == [before.envelope(BASELINE)]
    assert len(engines.swept) == 1
    assert after.calibrated is not None
    assert after.calibrated.whole
    assert (before.live, after.live) == (True, True)
    assert after.peak_concurrency == before.peak_concurrency
    assert after.lattice.ladders[TOKENS][-1] == before.lattice.ladders[TOKENS][-1]
    # The engine is kept, and its log goes where those of the trials go.
    log_path = log_folder(after.settings, "night") / "calibrate.log"
    assert engines.logs == [log_path]
    assert stage.log_path(after, BASELINE, "live") == log_path
    assert engines.alive


def test_restarts_alone_are_calibrated_too() -> None:
    engines = ScriptedEngines()
    _, after, _, heard = begun(engines, fidelity="restart")
    assert after.calibrated is not None
    assert not after.live
    assert len(heard.said) == 1
    assert len(engines.started) == 1


@pytest.mark.parametrize(
    ("changes", "live"), [({"trials": CONFIRM_FROM - 1}, False), ({"calibrate": False}, True)]
)
def test_without_a_calibration_no_engine_is_started(changes: Any, live: bool) -> None:
    engines = ScriptedEngines()
    before, after, _, heard = begun(engines, **changes)
    assert after == before
    assert after.live == live
    assert heard.said == []
    assert engines.started == []


def test_an_obstacle_is_said_in_one_line_and_starts_no_engine() -> None:
    engines = ScriptedEngines()
    _, after, _, heard = begun(engines, HINDERED)
    assert heard.said == [f"every trial restarts an engine: {OBSTACLE}"]
    assert (after.live, after.calibrated) == (False, None)
    assert engines.started == []


@pytest.mark.parametrize("changes", [{"fidelity": "restart"}, {"trials": CONFIRM_FROM - 1}])
def test_an_obstacle_to_what_is_not_wanted_is_not_mentioned(changes: Any) -> None:
    _, after, _, heard = begun(ScriptedEngines(), HINDERED, **changes)
    assert heard.said == []
    assert not after.live


def test_an_obstacle_that_only_the_engine_knows_is_said_too() -> None:
    engines = ScriptedEngines(obstacle="another scheduler")
    before, after, _, heard = begun(engines)
    assert len(engines.started) == 1
    assert heard.said[1:] == [
        f"every trial restarts an engine: {UNUSABLE} (unknown: no step times: another scheduler)"
    ]
    assert (after.live, after.calibrated) == (False, None)
    assert after.lattice == before.lattice
    assert not engines.alive


@pytest.mark.parametrize("stage", ["start", "sweep"])
def test_an_envelope_that_does_not_run_is_said_in_one_line(stage: str) -> None:
    engines = ScriptedEngines(faults={(stage, 0): OUT_OF_MEMORY})
    before, after, _, heard = begun(engines)
    assert heard.said[1:] == [
        f"every trial restarts an engine: {UNUSABLE} (oom_start: CUDA out of memory)"
    ]
    assert after == replace(before, live=False)
    assert not engines.alive


@pytest.mark.parametrize("failure_class", sorted(PASSING))
@pytest.mark.parametrize("stage", ["start", "sweep"])
def test_what_may_pass_is_tried_once_more(
    failure_class: FailureClass, stage: str, tmp_path: Path
) -> None:
    """As an engine of which somebody ended a process."""
    passing = TrialFailed(Failure(failure_class, "it is gone"))
    engines = ScriptedEngines(faults={(stage, 0): passing})
    _, after, _, heard = begun(engines, log_folder=tmp_path)
    assert heard.said[1:] == [f"calibrating once more: {failure_class}: it is gone"]
    assert after.live
    assert after.calibrated is not None
    assert after.calibrated.whole
    assert engines.kills == 1
    # Each start has a log of its own.
    assert [log.name for log in engines.logs] == ["calibrate.log", "calibrate-again.log"]


@pytest.mark.parametrize("failure_class", sorted(PASSING))
def test_what_does_not_pass_at_once_ends_no_live_search(failure_class: FailureClass) -> None:
    passing = TrialFailed(Failure(failure_class, "somebody has the memory"))
    engines = ScriptedEngines(faults={("start", 0): passing, ("start", 1): passing})
    before, after, _, heard = begun(engines)
    words = f"{failure_class}: somebody has the memory"
    assert heard.said[1:] == [
        f"calibrating once more: {words}",
        f"no step times were measured: {UNUSABLE} ({words})",
    ]
    assert after == before
    assert after.live
    assert len(engines.started) == 2
    assert not engines.alive


def test_a_second_failure_that_stays_makes_every_trial_restart() -> None:
    hang = TrialFailed(Failure("hang", "silence"))
    engines = ScriptedEngines(faults={("sweep", 0): hang, ("start", 1): OUT_OF_MEMORY})
    _, after, _, heard = begun(engines)
    assert heard.said[-1].startswith(f"every trial restarts an engine: {UNUSABLE} (oom_start")
    assert not after.live


def test_restarts_that_could_not_be_calibrated_say_so() -> None:
    engines = ScriptedEngines(faults={("start", 0): OUT_OF_MEMORY})
    before, after, _, heard = begun(engines, fidelity="restart")
    assert heard.said[1:] == [
        f"no step times were measured: {UNUSABLE} (oom_start: CUDA out of memory)"
    ]
    assert after == before


def test_knobs_keep_their_values_in_the_calibrated_ladders() -> None:
    knobs = {SEQS: [16, 64], "enforce_eager": [False, True]}
    _, after, _, _ = begun(ScriptedEngines(), engine_args={"enforce_eager": False}, knobs=knobs)
    assert after.lattice.ladders[SEQS] == (16, 64)
    assert after.lattice.ladders["enforce_eager"] == (False, True)
