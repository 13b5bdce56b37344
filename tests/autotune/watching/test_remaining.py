from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.study.held import STARTS, HeldPart
from autotune.watching.remaining import Left, time_left
from storage.records import StudyRecord
from tests.autotune.study.records import limits, record, study_record

TIMINGS = {"start_s": 20.0, "warmup_s": 10.0, "replay_s": 60.0, "stop_s": 10.0}
TIMED = [record(0, timings=TIMINGS)]


def left(study: StudyRecord, *, part: str = "start", elapsed_s: float = 0.0) -> Left | None:
    return time_left(
        study, TIMED, record(1, limits(256)), to_come=2, part=part, elapsed_s=elapsed_s
    )


@pytest.mark.parametrize(
    ("part", "elapsed_s", "seconds"),
    [("start", 0.0, 200.0), ("replay", 15.0, 155.0), ("wait", 15.0, 200.0)],
)
def test_trials_to_come_take_what_others_took(part: str, elapsed_s: float, seconds: float) -> None:
    assert left(study_record(), part=part, elapsed_s=elapsed_s) == Left(seconds, measured=True)


def test_what_is_held_out_comes_on_top() -> None:
    study = study_record()
    part = HeldPart("20%", "abc", 16, 30.0, "", 0, ())
    study = replace(study, spec={**study.spec, "holdout": part.to_json()})
    assert left(study) == Left(200.0 + STARTS * 70.0, measured=True)


def test_time_on_paper_is_nobodys() -> None:
    study = study_record()
    simulated = {**study.fingerprint, "engine": "sim:h200-llama8b@abc"}
    assert left(replace(study, fingerprint=simulated)) is None
