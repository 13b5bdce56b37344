"""Our figures against those of ``vllm bench serve``, from the same stamps."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from typing import Any

import numpy as np
import pytest

from objectives.latency import tpot_ms
from objectives.limits import Budget, parse_budget
from objectives.measurement import Measurement, measure
from objectives.samples import RequestSamples
from tests.objectives.builders import from_deliveries, random_samples

pytestmark = pytest.mark.engine

DURATION_S = 42.0
INF = float("inf")


@pytest.fixture(scope="module")
def bench() -> Any:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # What vLLM and torch warn of while they load is theirs.
        warnings.simplefilter("ignore")
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        return importlib.import_module("vllm.benchmarks.serve")


def vllm_metrics(
    bench: Any, samples: RequestSamples, goodput: dict[str, float] | None = None
) -> Any:
    """Metrics that vLLM computes if each request is sent on time."""
    outputs = [
        bench.RequestFuncOutput(
            success=not bool(samples.failed[row]),
            latency=float(samples.last_token_s[row] - samples.scheduled_s[row]),
            output_tokens=int(samples.output_tokens[row]),
            ttft=float(samples.first_token_s[row] - samples.scheduled_s[row]),
            itl=samples.gap_s[samples.gap_request == row].tolist(),
            prompt_len=int(samples.prompt_tokens[row]),
            start_time=float(samples.scheduled_s[row]),
        )
        for row in range(len(samples))
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        metrics, _ = bench.calculate_metrics(
            input_requests=[],
            outputs=outputs,
            dur_s=DURATION_S,
            tokenizer=None,
            selected_percentiles=[50, 90, 95, 99],
            goodput_config_dict=goodput or {},
        )
    return metrics


def ours(samples: RequestSamples, budget: Budget | None = None) -> Measurement:
    return measure(samples, classes=(), budget=budget or Budget(), duration_s=DURATION_S)


@pytest.mark.parametrize(
    ("metric", "theirs"), [("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")]
)
def test_latencies_agree(bench: Any, metric: str, theirs: str) -> None:
    samples = random_samples(400, seed=5)
    found, expected = ours(samples).metrics, vllm_metrics(bench, samples)
    assert found[f"{metric}_mean"] == pytest.approx(getattr(expected, f"mean_{theirs}_ms"))
    assert found[f"{metric}_p50"] == pytest.approx(getattr(expected, f"median_{theirs}_ms"))
    for percentile, value in getattr(expected, f"percentiles_{theirs}_ms"):
        assert found[f"{metric}_p{percentile}"] == pytest.approx(value)


def test_rates_agree_with_failures_too(bench: Any) -> None:
    samples = random_samples(400, seed=6, fail=0.1)
    limits = {"ttft": 500.0, "tpot": 22.0, "e2el": 900.0}
    budget = parse_budget(" ".join(f"{name}:{limit}" for name, limit in limits.items()))
    found, expected = ours(samples, budget).metrics, vllm_metrics(bench, samples, limits)
    assert found["goodput"] == pytest.approx(expected.request_goodput)
    assert 0 < expected.request_goodput < expected.request_throughput
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        assert found[name] == pytest.approx(getattr(expected, name))


def test_ours_counts_from_the_scheduled_time(bench: Any) -> None:
    """vLLM's clock starts when its client got round to sending."""
    arrays = random_samples(400, seed=7).to_arrays()
    late = RequestSamples.from_arrays({**arrays, "scheduled_s": arrays["scheduled_s"] - 0.25})
    theirs = vllm_metrics(bench, RequestSamples.from_arrays(arrays))
    found = ours(late).metrics
    assert found["ttft_mean"] == pytest.approx(theirs.mean_ttft_ms + 250)
    assert found["e2e_mean"] == pytest.approx(theirs.mean_e2el_ms + 250)
    assert found["tpot_mean"] == pytest.approx(theirs.mean_tpot_ms)


def test_one_token_has_no_tpot_and_breaks_no_limit_on_it(bench: Any) -> None:
    """Both leave it out of TPOT; for goodput vLLM takes it as 0, which keeps any limit too."""
    samples = from_deliveries([[0.5], [0.5, 0.6]], scheduled_s=[0.0, 0.0])
    assert np.isnan(tpot_ms(samples)).tolist() == [True, False]
    found = ours(samples, parse_budget("tpot:50")).metrics
    expected = vllm_metrics(bench, samples, {"tpot": 50.0})
    assert found["tpot_mean"] == pytest.approx(100)
    assert expected.mean_tpot_ms == pytest.approx(100)
    assert found["goodput"] == pytest.approx(1 / DURATION_S)
    assert expected.request_goodput == pytest.approx(1 / DURATION_S)


def test_failures_are_infinitely_late_where_vllm_forgets_them(bench: Any) -> None:
    samples = from_deliveries(
        [[0.5, 0.6], [0.5, 0.6], [0.5, 0.6]],
        scheduled_s=[0.0] * 3,
        failed=[False, True, True],
    )
    found, expected = ours(samples).metrics, vllm_metrics(bench, samples)
    assert (found["ttft_p50"], found["ttft_mean"], found["itl_max"]) == (INF, INF, INF)
    assert expected.median_ttft_ms == pytest.approx(500)


def test_nothing_completed_is_worst_where_vllm_reports_zero(bench: Any) -> None:
    samples = from_deliveries([[0.5, 0.6]], scheduled_s=[0.0], failed=[True])
    with pytest.warns(UserWarning, match="All requests failed"):
        expected = vllm_metrics(bench, samples)
    assert expected.mean_ttft_ms == 0
    assert ours(samples).metrics["ttft_p99"] == INF
