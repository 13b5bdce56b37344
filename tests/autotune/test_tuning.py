from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autotune import lease, tuning
from autotune.candidates.lattice import TOKENS
from autotune.cli.watch import ScreenWatcher
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.supervisor import Description
from autotune.errors import LeaseHeld
from autotune.study.deadline import DeadlinePassed, Due, boot_time
from autotune.study.job import Job
from autotune.study.session import device_lease
from storage.errors import FingerprintMismatch
from storage.records import StudyRecord, TrialRecord
from storage.repository import open_repository
from tests.autotune.study.scripted import (
    BASELINE,
    DESCRIPTION,
    FLAGS,
    INFO,
    Notes,
    ScriptedEngines,
    settings_of,
    small_trace,
)

TRIALS = 6
CALIBRATING = "calibrating: starting the engine of the largest limits"
UNUSABLE = "the engine of the largest limits cannot be used"
HINDERED = Description(replace(INFO, live_obstacle="scheduler_cls is given"), FLAGS)


class Told(Notes):
    """A watcher that is also told of the study."""

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
        self.said.append(f"opened {study.name} with {len(trials)} trials")


class Idle:
    """A controller that writes down its job and runs nothing."""

    ended_by = "exhausted"
    simulations = None

    jobs: ClassVar[list[Job]] = []

    def __init__(self, *, job: Job, **_: object) -> None:
        self.jobs.append(job)

    def run(self) -> None:
        return None

    def judge(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Study:
    """What a run left behind, and what was said meanwhile, but for what all runs say."""

    record: StudyRecord
    rows: tuple[TrialRecord, ...]
    said: list[str]

    @property
    def fidelities(self) -> list[str]:
        return [row.fidelity for row in self.rows]


Tune = Callable[..., Study]


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs of all controllers, which run nothing."""
    monkeypatch.setattr(Idle, "jobs", [])
    monkeypatch.setattr(tuning, "Controller", Idle)
    return Idle.jobs


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Run or resume the study of the test on engines of this description."""
    trace = tmp_path / "small.jsonl"
    trace.write_bytes(b"".join(small_trace().lines()))
    monkeypatch.setattr(lease, "LOCKS", tmp_path)
    monkeypatch.setattr(tuning, "end_earlier_runs", lambda _say: None)
    url = f"sqlite:///{tmp_path / 'study.db'}"

    def run(
        engines: ScriptedEngines, described: Description = DESCRIPTION, **changes: Any
    ) -> Study:
        monkeypatch.setattr(tuning, "open_supervisor", lambda _settings, _name: engines)
        monkeypatch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: described)
        settings = settings_of(
            **{
                "trace": str(trace),
                "storage": url,
                "study_name": "night",
                "log_folder": tmp_path / "logs",
                "trials": TRIALS,
                "classes": "",
                **changes,
            }
        )
        watcher = Told()
        tuning.run_study(settings, watcher, environ={})
        with open_repository(url, create=False) as repository:
            record = repository.study("night")
            rows = repository.trials(record.id)
        usual = (
            "asking vLLM",
            "opened night",
            "no untested candidate",
            "no candidate that was not tried",
            "simulating all",
            "All requests come within",
            "simulating all",
        )
        return Study(record, rows, [each for each in watcher.said if not each.startswith(usual)])

    return run


@pytest.mark.study
def test_a_new_study_calibrates_and_a_resumed_one_goes_on_with_that(tune: Tune) -> None:
    first_engines, engines = ScriptedEngines(), ScriptedEngines()
    first = tune(first_engines)
    assert first.said == [CALIBRATING]
    assert len(first_engines.swept) == 1
    # The baseline takes the engine that was calibrated; two restarts confirm.
    assert len(first_engines.started) == 3
    assert first.rows[0].log_path is not None
    assert Path(first.rows[0].log_path).name == "calibrate.log"
    assert first.fidelities == ["restart", "live", "live", "live", "restart", "restart"]
    assert first.record.fingerprint["fidelity"] == "live"

    again = tune(engines, trials=TRIALS + 1, calibrate=True)
    assert again.said == []
    assert engines.swept == []
    assert again.rows[:TRIALS] == first.rows
    assert again.fidelities[TRIALS:] == ["live"]
    assert again.record.fingerprint == first.record.fingerprint
    assert again.record.spec["calibration"] == first.record.spec["calibration"]
    assert again.record.spec["calibration"]["whole"]


def test_a_live_study_is_not_resumed_with_restarts(tune: Tune, idle: list[Job]) -> None:
    tune(ScriptedEngines())
    engines = ScriptedEngines()
    with pytest.raises(FingerprintMismatch, match="fidelity"):
        tune(engines, fidelity="restart")
    assert engines.started == []
    assert len(idle) == 1


@pytest.mark.study
def test_a_study_of_restarts_stays_one(tune: Tune) -> None:
    engines = ScriptedEngines()
    first = tune(engines, fidelity="restart", calibrate=False)
    assert first.said == []
    assert engines.swept == []
    assert first.fidelities == ["restart"] * TRIALS
    assert len(engines.started) == TRIALS
    assert "fidelity" not in first.record.fingerprint
    assert first.record.spec["calibration"] is None
    again = tune(engines, trials=TRIALS + 1)
    assert again.said == []
    assert engines.swept == []
    assert again.fidelities == ["restart"] * (TRIALS + 1)


def test_a_short_study_restarts_and_is_not_calibrated(tune: Tune) -> None:
    engines = ScriptedEngines()
    study = tune(engines, trials=2)
    assert study.said == []
    assert engines.swept == []
    assert study.fidelities == ["restart"] * 2
    assert "fidelity" not in study.record.fingerprint


@pytest.mark.parametrize(
    ("engines", "described", "expected"),
    [
        (ScriptedEngines(), HINDERED, "every trial restarts an engine: scheduler_cls is given"),
        (
            ScriptedEngines(faults={("start", 0): TrialFailed(Failure("oom_start", "no room"))}),
            DESCRIPTION,
            f"every trial restarts an engine: {UNUSABLE} (oom_start: no room)",
        ),
    ],
    ids=["limits that cannot change", "an envelope that does not start"],
)
def test_what_stands_in_the_way_is_said_in_one_line(
    tune: Tune,
    idle: list[Job],
    engines: ScriptedEngines,
    described: Description,
    expected: str,
) -> None:
    study = tune(engines, described)
    assert [each for each in study.said if each != CALIBRATING] == [expected]
    (job,) = idle
    assert (job.live, job.calibrated) == (False, None)
    assert "fidelity" not in study.record.fingerprint
    # It has begun that way and goes on that way, without another word.
    assert tune(ScriptedEngines()).said == []
    assert not idle[1].live


def test_without_calibration_the_search_is_live_all_the_same(tune: Tune, idle: list[Job]) -> None:
    engines = ScriptedEngines()
    study = tune(engines, calibrate=False)
    assert study.said == []
    assert (engines.started, engines.swept) == ([], [])
    assert study.record.fingerprint["fidelity"] == "live"
    tune(engines, calibrate=True)
    assert engines.swept == []
    assert [(job.live, job.calibrated) for job in idle] == [(True, None)] * 2


def test_a_resumed_study_has_the_ladders_that_were_measured(tune: Tune, idle: list[Job]) -> None:
    """Also where the arguments or the traffic would estimate others today."""
    graphs = Description(replace(INFO, capture_sizes=(8, 16, 32, 512)), FLAGS)
    first = tune(ScriptedEngines(), graphs)
    again = tune(ScriptedEngines(), graphs, budget="ttft_p95:30000 tpot_p95:1600")
    assert again.record.fingerprint == first.record.fingerprint
    before, after = idle
    assert after.lattice == before.lattice
    assert after.calibrated is not None
    assert before.calibrated is not None
    assert after.calibrated.calibration == before.calibrated.calibration
    assert after.lattice.ladders[TOKENS][-1] == BASELINE[TOKENS]


def test_gpus_that_only_a_knob_uses_are_leased_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def checked(_job: Job, engines: ScriptedEngines, _say: object) -> list[str]:
        engines.device_uuids |= {"GPU-2"}
        return []

    engines = ScriptedEngines(device_uuids=frozenset({"GPU-1"}))
    monkeypatch.setattr(lease, "LOCKS", tmp_path)
    monkeypatch.setattr(tuning, "open_supervisor", lambda _settings, _name: engines)
    monkeypatch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: DESCRIPTION)
    monkeypatch.setattr(tuning, "end_earlier_runs", lambda _say: None)
    monkeypatch.setattr(tuning, "check_knobs", checked)
    trace = tmp_path / "small.jsonl"
    trace.write_bytes(b"".join(small_trace().lines()))
    settings = settings_of(
        trace=str(trace), storage=f"sqlite:///{tmp_path / 'study.db'}", study_name="night"
    )
    with (
        device_lease("H200", ["GPU-2"]),
        ScreenWatcher() as watcher,
        pytest.raises(LeaseHeld, match="GPU-2 is in use"),
    ):
        tuning.run_study(settings, watcher, environ={})
    assert engines.started == []


class Following(Told):
    """Counts how often it hears that the study goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = 0
        self.due_s: list[float] = []

    def alive(self) -> None:
        self.heard += 1

    def due(self, left_s: float) -> None:
        self.due_s.append(left_s)


class AskedEngines(ScriptedEngines):
    """Engines that can be asked for what they are, and are not."""

    def describe(self, engine_args: Mapping[str, Any]) -> Description:
        raise AssertionError(engine_args)

    def validate(self, engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
        raise AssertionError(engine_args)


def test_engines_at_work_tell_the_watcher_and_end_with_the_deadline() -> None:
    engines, watcher = AskedEngines(), Following()
    begun_s = boot_time()
    tuning._deadline(Due(3600.0, "--timeout 1h"), begun_s, engines, watcher)
    assert engines.pulse is not None
    engines.pulse()
    assert watcher.heard == 1
    assert 3590.0 < watcher.due_s[0] <= 3600.0
    tuning._deadline(Due(3600.0, "--timeout 1h"), begun_s - 7200.0, engines, watcher)
    with pytest.raises(DeadlinePassed):
        engines.pulse()
    assert watcher.heard == 1


def test_without_a_deadline_they_tell_it_all_the_same() -> None:
    engines, watcher = AskedEngines(), Following()
    assert tuning._deadline(None, 0.0, engines, watcher) is None
    assert engines.pulse is not None
    engines.pulse()
    assert (watcher.heard, watcher.due_s) == (1, [])


def test_whoever_waits_tells_that_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watcher = [0.0], Following()

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    tuning._pause(watcher.alive)(60.0)
    assert clock == [60.0]
    assert watcher.heard == 60
