from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.engine.supervisor import SWEEP_S
from autotune.study.deadline import Due
from autotune.study.schedule import schedule
from autotune.study.timekeeper import BETWEEN_S
from tests.autotune.study.records import record
from tests.autotune.study.scripted import job_of

NOW_S = 1_800_000_000.0
TIMINGS = {"start_s": 20.0, "warmup_s": 2.0, "replay_s": 4.0, "stop_s": 1.0}


def test_each_phase_gets_its_time() -> None:
    job = job_of(trials=24, live=True)
    whole = schedule(job, None, start_s=10.0)
    assert (whole.baseline, whole.search, whole.confirm) == (1, 17, 6)
    assert whole.phases["calibrate"] == 10.0 + SWEEP_S
    assert whole.phases["confirm"] == pytest.approx(6 * whole.restart_s)
    assert whole.phases["holdout"] == 0.0
    assert whole.trial_s < whole.restart_s
    told = whole.to_json(NOW_S)
    assert (told["trials"], told["cut"], told["deadline"]) == (24, False, None)
    assert told["total_s"] == pytest.approx(sum(told["phases"].values()))


def test_a_deadline_takes_from_the_search_first() -> None:
    job = replace(job_of(trials=24), held=job_of().trace)
    whole = schedule(job, None, start_s=10.0)
    cut = schedule(job, Due(0.7 * whole.total_s, "--timeout"), start_s=10.0)
    assert cut.cut
    assert cut.confirm == whole.confirm == 2
    assert cut.held_s == whole.held_s > 0
    assert 0 < cut.search < whole.search
    assert cut.total_s <= 0.7 * whole.total_s
    assert cut.to_json(NOW_S)["deadline_s"] == pytest.approx(0.7 * whole.total_s, abs=0.1)


def test_a_short_time_confirms_the_least() -> None:
    job = job_of(trials=24, live=True, calibrate=False)
    whole = schedule(job, None, start_s=10.0)
    short = schedule(job, Due(8 * whole.restart_s, "--timeout"), start_s=10.0)
    assert short.confirm == 2
    assert short.search > 1


def test_a_study_that_goes_on_knows_its_times() -> None:
    rows = [record(0, phase="baseline", timings=dict(TIMINGS)), record(1, timings=dict(TIMINGS))]
    resumed = schedule(job_of(trials=8), None, rows, start_s=None)
    assert resumed.allowed.seconds["start"] == 20.0 * 1.125
    assert (resumed.baseline, resumed.search, resumed.confirm) == (0, 4, 2)
    assert resumed.calibrate_s == 0.0
    assert resumed.restart_s == pytest.approx(27.0 * 1.125 + BETWEEN_S)
