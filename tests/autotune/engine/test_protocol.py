from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest

from autotune.engine.protocol import (
    DETERMINISTIC_FAILURES,
    EngineInfo,
    Failure,
    FailureClass,
    Iterations,
    TrialFailed,
    request_arrays,
)

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
    )


def iterations() -> Iterations:
    numbers = np.arange(3, dtype=np.int64)
    return Iterations(
        at_s=np.array([0.1, 0.2, 0.3]),
        prefill_tokens=numbers,
        decode_requests=numbers + 1,
        running=numbers + 2,
        waiting=numbers + 3,
        kv_usage=np.array([0.0, 0.5, 1.0]),
        preemptions=numbers + 4,
        gaps=numbers + 5,
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


def test_iterations_are_told_apart_from_requests() -> None:
    before = iterations()
    requests = {"sent_s": np.array([0.0]), "gap_s": np.empty(0)}
    after, rest = Iterations.split({**before.to_arrays(), **requests})
    assert rest == requests
    for name, array in before.to_arrays().items():
        assert name.startswith("iteration_")
        np.testing.assert_array_equal(after.to_arrays()[name], array, strict=True)


def test_arrays_without_iterations_are_not_a_replay() -> None:
    with pytest.raises(KeyError, match="iteration_at_s"):
        Iterations.split({"sent_s": np.array([0.0])})


def test_request_arrays_leave_the_iterations_out() -> None:
    sent_s = np.array([0.0])
    assert request_arrays({**iterations().to_arrays(), "sent_s": sent_s}) == {"sent_s": sent_s}
