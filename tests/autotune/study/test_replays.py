from __future__ import annotations

import pytest

from autotune.study.replays import (
    FIRST_WARMUP_S,
    MIN_WARMUP_REQUESTS,
    client_bound,
    first_warmup_requests,
    warmup_requests,
)
from objectives.limits import parse_budget
from objectives.measurement import Measurement
from tests.autotune.study.scripted import small_trace


def measurement(lag_ms: float, *, ttft_ms: float | None = 400.0) -> Measurement:
    return Measurement(
        metrics={"ttft_p95": ttft_ms},
        intervals={},
        requests=80,
        failed_requests=0,
        window_s=4.0,
        busy_s=4.0,
        useful_tokens=1000,
        send_lag_p99_ms=lag_ms,
    )


@pytest.mark.parametrize(("seconds", "requests"), [(0.0, 0), (1.0, 20), (1.01, 21), (99.0, 80)])
def test_a_warm_up_is_the_head_of_the_window(seconds: float, requests: int) -> None:
    assert warmup_requests(small_trace(), seconds) == requests


def test_a_sparse_window_warms_up_all_the_same() -> None:
    assert warmup_requests(small_trace(), 0.001) == MIN_WARMUP_REQUESTS


@pytest.mark.parametrize(
    ("budget", "ttft_ms", "allowed_ms"),
    [
        ("ttft_p95:300", 400.0, 30.0),
        ("ttft_p99:900 ttft_p50:200", 400.0, 20.0),
        ("ttft_p95:20", 400.0, 5.0),
        ("tpot_p95:20", 400.0, 40.0),
        ("", 400.0, 40.0),
        ("", None, 5.0),
    ],
)
def test_a_tenth_of_the_ttft_limit_is_allowed(
    budget: str, ttft_ms: float | None, allowed_ms: float
) -> None:
    limits = parse_budget(budget)
    assert client_bound(measurement(allowed_ms, ttft_ms=ttft_ms), limits) is None
    failure = client_bound(measurement(allowed_ms + 0.1, ttft_ms=ttft_ms), limits)
    assert failure is not None
    assert failure.failure_class == "client_bound"
    assert not failure.deterministic
    assert f"over {allowed_ms:.1f} ms" in failure.evidence


def test_a_client_that_sent_nothing_does_not_count() -> None:
    assert client_bound(measurement(float("inf")), parse_budget("ttft_p95:300")) is not None


def test_the_first_warm_up_on_an_engine_sees_more_of_the_window() -> None:
    trace = small_trace()
    assert trace.duration_s < FIRST_WARMUP_S
    assert first_warmup_requests(trace, 1.0) == len(trace.requests) > warmup_requests(trace, 1.0)
    assert first_warmup_requests(trace, 0.0) == 0
