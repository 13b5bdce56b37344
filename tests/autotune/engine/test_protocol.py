from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from autotune.engine.protocol import (
    DETERMINISTIC_FAILURES,
    SCHEDULE_ARRAYS,
    SCHEDULE_PREFIX,
    EngineInfo,
    Failure,
    FailureClass,
    Schedule,
    TrialFailed,
)
from objectives.utilization import Work

CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)


def info(kv_cache_tokens: int | None = 65_536) -> EngineInfo:
    return EngineInfo(
        vllm_version="0.32.0",
        torch_version="2.13.0+cpu",
        device="A CPU",
        device_uuids=(),
        model="/models/tiny",
        resolved={"max_model_len": 8192, "max_num_seqs": 128, "dtype": "bfloat16"},
        vocab_size=4096,
        kv_cache_tokens=kv_cache_tokens,
        capture_sizes=(1, 2, 4),
        live_obstacle="scheduler_cls is given",
        forecast_obstacle="pipeline_parallel_size is more than 1",
        work=Work(1e9, 2e4, 3e8, "vllm"),
    )


@pytest.mark.parametrize("failure_class", CLASSES)
def test_a_failure_is_deterministic_if_the_candidate_causes_it(
    failure_class: FailureClass,
) -> None:
    caused = failure_class in {"oom_start", "no_kv_room", "refused_argument", "oom_run"}
    assert Failure(failure_class, "why").deterministic is caused


def test_all_deterministic_failures_are_failures() -> None:
    assert set(CLASSES) >= DETERMINISTIC_FAILURES


def test_a_failed_trial_names_class_and_evidence() -> None:
    failure = Failure("hang", "no sign of life")
    outcome = TrialFailed(failure)
    assert outcome.failure is failure
    assert str(outcome) == "hang: no sign of life"


@pytest.mark.parametrize("kv_cache_tokens", [None, 65_536])
def test_engine_info_survives_json(kv_cache_tokens: int | None) -> None:
    before = info(kv_cache_tokens)
    after = EngineInfo.from_json(json.loads(json.dumps(before.to_json(), allow_nan=False)))
    assert after == before
    assert after.max_model_len == 8192


def test_engine_info_of_a_trial_that_was_stored_with_more_and_before_a_field_was_there() -> None:
    stored = {**info().to_json(), "errors": [], "load": {"steps": 3}}
    assert EngineInfo.of_trial(stored) == info()
    del stored["forecast_obstacle"]
    assert EngineInfo.of_trial(stored) == replace(info(), forecast_obstacle=None)


def test_a_schedule_numbers_its_requests() -> None:
    shares = [(0, "b", 64), (1, "b", 6), (1, "a", 10), (2, "b", 1)]
    schedule = Schedule.build(shares, [("a", 1), ("b", 0)])
    assert schedule.names == ("a", "b")
    assert schedule.step.tolist() == [0, 1, 1, 2]
    assert schedule.request.tolist() == [1, 1, 0, 1]
    assert schedule.tokens.tolist() == [64, 6, 10, 1]
    assert schedule.arrival_step.tolist() == [1, 0]


def test_a_request_from_before_the_recording_has_no_arrival() -> None:
    schedule = Schedule.build([(0, "old", 1)], [])
    assert schedule.arrival_step.tolist() == [-1]


def test_an_empty_schedule_has_its_arrays() -> None:
    assert [array.size for array in Schedule.empty().to_arrays().values()] == [0, 0, 0, 0]


def test_the_arrays_of_a_schedule_make_it_again() -> None:
    schedule = Schedule.build([(0, "b", 64), (1, "a", 10)], [("a", 1)])
    arrays = schedule.to_arrays()
    assert arrays.keys() == {SCHEDULE_PREFIX + name for name in SCHEDULE_ARRAYS}
    again = Schedule(schedule.names, *arrays.values())
    assert again.step.tolist() == schedule.step.tolist()
    assert again.arrival_step.tolist() == [1, -1]
