from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.bootstrap import resample_weights
from objectives.classes import class_mask, parse_classes
from objectives.errors import ObjectiveError
from objectives.latency import itl_ms, itl_owner, tpot_ms, ttft_ms
from objectives.limits import METRICS, Budget, metric_key, parse_budget
from objectives.measurement import measure, point_values
from objectives.samples import RequestSamples
from objectives.statistics import AGGREGATES, aggregate, intervals
from objectives.utilization import Work, busy_s, useful_flops
from tests.objectives.builders import from_deliveries, random_samples

INF = float("inf")
CLASSES = parse_classes("short:0-2000 long:2000-")
RATES = {
    "utilization",
    "prefix_hit_rate",
    "tokens_per_busy_s",
    "goodput",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
}
WORK = Work(1e9, 1e4, 1e8, "shape")
LATENCIES = [
    metric_key(metric, name, each)
    for metric in METRICS
    for name in AGGREGATES
    for each in (None, "short", "long")
]


@pytest.fixture(scope="module")
def samples() -> RequestSamples:
    return random_samples(500, seed=1)


def test_every_aggregate_of_every_metric_and_class_is_there(samples: RequestSamples) -> None:
    found = measure(samples, classes=CLASSES, budget=Budget())
    latencies = {
        f"{metric}_{name}{at}"
        for metric in ("ttft", "tpot", "itl", "e2e")
        for name in AGGREGATES
        for at in ("", "@short", "@long")
    }
    assert set(found.metrics) == latencies | RATES
    assert found.metrics["ttft_p95"] == aggregate(ttft_ms(samples), "p95")
    documents = samples.select(class_mask(samples.prompt_tokens, CLASSES[1]))
    assert found.metrics["itl_p99@long"] == aggregate(itl_ms(documents), "p99")


def test_intervals_are_of_the_usual_aggregates_and_what_the_budget_names(
    samples: RequestSamples,
) -> None:
    budget = parse_budget("e2e_p50@long:9000 ttft_p90:0.9x")
    found = measure(samples, classes=CLASSES, budget=budget).intervals
    assert len(found) == 4 * 3 * 3 + 2
    rows, weights = np.arange(len(samples)), resample_weights(len(samples), resamples=400, seed=0)
    assert found["ttft_p95"] == intervals(ttft_ms(samples), rows, weights, ["p95"])["p95"]
    assert found["tpot_p99"] == intervals(tpot_ms(samples), rows, weights, ["p99"])["p99"]
    pooled = intervals(itl_ms(samples), itl_owner(samples), weights, ["p99"])
    assert found["itl_p99"] == pooled["p99"]
    assert found["ttft_p99@long"].high is None
    assert found["e2e_p50@long"].high is not None
    assert found["ttft_p90"].high is not None


def test_rates_are_of_what_completed() -> None:
    samples = from_deliveries(
        [[1.0, 2.0], [1.5], [3.0, 4.0], []],
        scheduled_s=[1.0, 1.2, 2.0, 2.5],
        failed=[False, False, True, True],
        send_lag_s=0.01,
    )
    found = measure(samples, classes=(), budget=parse_budget("ttft:200"), duration_s=10.0)
    assert found.metrics["request_throughput"] == pytest.approx(0.2)
    assert found.metrics["output_throughput"] == pytest.approx(0.3)
    assert found.metrics["total_token_throughput"] == pytest.approx(20.3)
    assert found.metrics["goodput"] == pytest.approx(0.1)
    assert (found.requests, found.failed_requests, found.window_s) == (4, 2, 10.0)
    assert found.send_lag_p99_ms == pytest.approx(10)
    assert found.metrics["ttft_p50"] == INF
    assert found.metrics["tpot_mean"] == INF


def test_duration_runs_from_the_first_send_to_the_last_token() -> None:
    samples = from_deliveries([[4.0, 7.0], [6.0]], scheduled_s=[3.0, 5.0])
    assert measure(samples, classes=(), budget=Budget()).window_s == 4.0


def test_goodput_needs_an_absolute_limit(samples: RequestSamples) -> None:
    for text in ("", "ttft_p95:0.9x"):
        found = measure(samples, classes=(), budget=parse_budget(text))
        assert found.metrics["goodput"] is None


def test_an_empty_class_is_missing_not_zero() -> None:
    samples = from_deliveries([[1.0], [2.0]], scheduled_s=[0.0, 1.0])
    found = measure(samples, classes=CLASSES, budget=Budget())
    assert found.metrics["ttft_p95@long"] is None
    assert found.metrics["tpot_p95"] is None
    assert (found.intervals["ttft_p95@long"].low, found.intervals["tpot_p95"].low) == (None, None)


def test_what_cannot_be_measured_is_refused(samples: RequestSamples) -> None:
    nobody = samples.select(np.zeros(len(samples), dtype=np.bool_))
    with pytest.raises(ObjectiveError, match="without requests"):
        measure(nobody, classes=(), budget=Budget())
    with pytest.raises(ObjectiveError, match="must be positive, not 0 s"):
        measure(samples, classes=(), budget=Budget(), duration_s=0.0)
    with pytest.raises(ObjectiveError, match="no class 'short'"):
        measure(samples, classes=(), budget=parse_budget("ttft@short:5"))


def test_nothing_sent_is_infinitely_late() -> None:
    arrays = from_deliveries([[], []], scheduled_s=[0.0, 1.0]).to_arrays()
    silent = RequestSamples.from_arrays({**arrays, "sent_s": np.full(2, np.nan)})
    found = measure(silent, classes=(), budget=Budget())
    assert found.send_lag_p99_ms == INF
    assert found.metrics["tokens_per_busy_s"] is None


def test_utilization_needs_the_work_and_the_best() -> None:
    samples = random_samples(20)
    work = WORK
    best = useful_flops(samples, work) / busy_s(samples)
    known = measure(samples, classes=(), budget=Budget(), work=work, best_flops_per_s=2 * best)
    assert known.metrics["utilization"] == pytest.approx(0.5)
    bestless = measure(samples, classes=(), budget=Budget(), work=work)
    workless = measure(samples, classes=(), budget=Budget(), best_flops_per_s=best)
    assert bestless.metrics["utilization"] is workless.metrics["utilization"] is None


@settings(max_examples=25)
@given(
    requests=st.integers(1, 40),
    seed=st.integers(0, 10_000),
    fail=st.sampled_from([0.0, 0.1, 1.0]),
    keys=st.lists(
        st.sampled_from([*LATENCIES, "tokens_per_busy_s", "utilization"]), min_size=1, unique=True
    ),
)
def test_single_values_are_those_of_the_whole_measurement(
    requests: int, seed: int, fail: float, keys: list[str]
) -> None:
    samples = random_samples(requests, seed=seed, fail=fail)
    whole = measure(
        samples, classes=CLASSES, budget=Budget(), work=WORK, best_flops_per_s=1e13
    ).metrics
    found = point_values(samples, keys, classes=CLASSES, work=WORK, best_flops_per_s=1e13)
    assert found == {key: whole[key] for key in keys}


@pytest.mark.parametrize("known", [{"work": WORK}, {"best_flops_per_s": 1e13}])
def test_there_is_no_single_utilization_without_the_work_and_the_best(
    samples: RequestSamples, known: dict[str, Any]
) -> None:
    found = point_values(samples, ["ttft_p95", "utilization"], classes=(), **known)
    assert found == {"ttft_p95": aggregate(ttft_ms(samples), "p95")}
