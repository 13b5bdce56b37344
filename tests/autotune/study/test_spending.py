from __future__ import annotations

from dataclasses import replace

from autotune.study.spending import (
    FailureGroup,
    failures_of,
    slow_spells_of,
    spending_json,
    spending_of,
)
from autotune.study.view import StudyView
from storage.events import EventRecord
from storage.records import TrialRecord
from tests.autotune.study.records import record, study_record

TIMINGS = {"start_s": 20.0, "warmup_s": 3.0, "replay_s": 30.0, "stop_s": None}


def at(minute: int) -> str:
    return f"2026-11-01T10:{minute:02}:00+00:00"


def trial(number: int, begin: int, end: int | None, **changes: object) -> TrialRecord:
    times = {"started_at": at(begin), "finished_at": None if end is None else at(end)}
    return record(number, **{"timings": TIMINGS, **times, **changes})  # type: ignore[arg-type]


def view_of(*trials: TrialRecord, **fingerprint: object) -> StudyView:
    study = study_record()
    study = replace(study, fingerprint={**study.fingerprint, **fingerprint})
    return StudyView(study, trials, None)


def test_every_second_has_its_part() -> None:
    spending = spending_of(
        view_of(
            trial(0, 0, 1, phase="baseline"),
            trial(1, 2, 5, state="failed", failure_class="oom_start", timings=None),
            trial(2, 7, 8, engine={"device_uuids": ["GPU-1", "GPU-2"]}, fidelity="live"),
        ),
        (),
    )
    assert spending.seconds == {
        "calibrate_s": 0.0, "start_s": 40.0, "warmup_s": 6.0, "replay_s": 60.0, "stop_s": 0.0,
        "lost_s": 180.0, "idle_s": 180.0,
    }  # fmt: skip
    assert spending.total_s == 466.0
    assert spending.gpus == 2
    assert spending.trials == {
        ("baseline", "restart"): 1, ("search", "restart"): 1, ("search", "live"): 1,
    }  # fmt: skip
    assert spending_json(spending)["states"] == {"complete": 2, "failed": 1}


def test_the_time_that_a_study_stood_is_not_idle() -> None:
    cut = trial(1, 2, 30, state="interrupted", timings=None)
    trials = (trial(0, 0, 1), cut, trial(2, 40, 41), trial(3, 50, 51), trial(4, 52, None))
    resumed = [EventRecord(at(39), "resumed", {}), EventRecord(at(45), "resumed", {})]
    seconds = spending_of(view_of(*trials), resumed).seconds
    assert (seconds["idle_s"], seconds["lost_s"]) == (120.0, 0.0)


def test_nobody_waits_for_a_simulation() -> None:
    spending = spending_of(view_of(trial(0, 0, 1), trial(1, 9, 10), engine="sim:x@0"), ())
    assert spending.simulated
    assert spending.seconds["idle_s"] is None
    assert spending.gpus is None
    assert spending.total_s == 106.0


def test_failures_are_grouped_and_slow_spells_are_none_of_them() -> None:
    trials = (
        trial(0, 0, 1, state="failed", failure_class="hang", failure_evidence="no token"),
        trial(1, 1, 2, state="infeasible", failure_class="oom_start", failure_evidence="first"),
        trial(2, 2, 3, state="invalid", failure_class="slow_spell", failure_evidence="slow"),
        trial(3, 3, 4, state="infeasible", failure_class="oom_start", failure_evidence="last"),
        trial(4, 4, 5),
    )
    assert failures_of(trials) == (
        FailureGroup("oom_start", (1, 3), "last"),
        FailureGroup("hang", (0,), "no token"),
    )
    assert slow_spells_of(trials) == (2,)
