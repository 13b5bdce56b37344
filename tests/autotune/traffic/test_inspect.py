from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from autotune.traffic.inspect import busy_seconds, chunking_sentence, describe
from autotune.traffic.synth import synthesize
from autotune.traffic.trace import load_trace
from objectives.classes import LengthClass
from tests.autotune.traffic.examples import AZURE_CONVERSATION, MOONCAKE, request, trace


def test_figures_of_a_small_trace() -> None:
    summary = describe(
        trace(
            request(0.0, prompt=100, output=10),
            request(0.5, prompt=200, output=20),
            request(2.0, prompt=3000, output=30),
            request(4.0, prompt=400, output=40),
        ),
        classes=[LengthClass("short", 0, 1000), LengthClass("huge", 5000, None)],
    )
    assert (summary.requests, summary.duration_s, summary.rate_per_s) == (4, 4.0, 1.0)
    assert summary.peak_rate_per_s == 2.0
    assert summary.dispersion_index == pytest.approx(np.var([2, 0, 1, 0], ddof=1) / 0.75)
    assert summary.gap_cv == pytest.approx(np.std([0.5, 1.5, 2.0], ddof=1) / (4 / 3))
    assert (summary.prompt.min, summary.prompt.max, summary.prompt.total) == (100, 3000, 3700)
    assert (summary.prompt.p50, summary.output.p50, summary.output.mean) == (300.0, 25.0, 25.0)
    assert (summary.longest_request, summary.recommended_max_model_len) == (3030, 3072)
    assert summary.share_over_budget == 0.25
    short, huge = summary.classes
    assert (short.requests, short.share, short.prompt_p50, short.output_p50) == (3, 0.75, 200, 20)
    assert (huge.requests, huge.share, huge.prompt_p50, huge.output_p50) == (0, 0.0, None, None)


def test_a_multiple_of_64_is_not_rounded_up() -> None:
    summary = describe(trace(request(0.0, prompt=1000, output=24)))
    assert summary.recommended_max_model_len == 1024


def test_what_one_request_cannot_tell_is_none() -> None:
    summary = describe(trace(request(0.0)))
    assert summary.rate_per_s is None
    assert summary.dispersion_index is None
    assert summary.gap_cv is None
    assert summary.peak_rate_per_s == 1.0
    assert summary.simultaneous == 0
    assert summary.classes == ()


def test_requests_of_one_instant_have_no_burstiness() -> None:
    summary = describe(trace(*[request(0.0)] * 5))
    assert (summary.gap_cv, summary.rate_per_s) == (None, None)
    assert summary.simultaneous == 4


def test_only_unbroken_prefixes_count_as_reuse() -> None:
    built = trace(
        request(0.0, prompt=1500, hash_ids=(1, 2, 3)),
        request(1.0, prompt=1500, hash_ids=(1, 2, 4)),
        request(2.0, prompt=1500, hash_ids=(9, 2, 3)),
    )
    assert describe(built).block_reuse_share == pytest.approx(2 / 9)


def test_reuse_is_unknown_where_prefixes_are() -> None:
    assert describe(trace(request(0.0), prefixes_known=False)).block_reuse_share is None


@pytest.mark.parametrize(
    ("budget_tokens", "said"),
    [
        (4096, "No prompt is longer than 4096 tokens"),
        (3000, "No prompt is longer than 3000 tokens"),
        (2999, "50.0% of prompts are longer than 2999 tokens"),
    ],
)
def test_chunking_is_judged_by_the_budget(budget_tokens: int, said: str) -> None:
    built = trace(request(0.0, prompt=3000), request(1.0))
    assert chunking_sentence(describe(built, budget_tokens=budget_tokens)).startswith(said)


def test_classes_are_found_in_two_groups() -> None:
    short, long = describe(synthesize("mixed", rate=10, duration_s=100, seed=1)).classes
    assert short.high == long.low
    assert long.share == pytest.approx(0.15, abs=0.05)


def test_arrivals_are_counted_by_whole_seconds() -> None:
    built = trace(request(0.0), request(0.999), request(1.0), request(3.5))
    seconds, counts = busy_seconds(built)
    assert (seconds.tolist(), counts.tolist()) == ([0, 1, 3], [2, 1, 1])


def test_a_year_of_silence_costs_nothing() -> None:
    year_s = 365 * 86_400
    tracemalloc.start()
    summary = describe(trace(request(0.0), request(0.5), request(float(year_s))))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summary.dispersion_index == pytest.approx(2.0, rel=1e-6)
    assert peak_bytes < 2**20


@pytest.mark.shared
def test_recorded_traces() -> None:
    azure = describe(load_trace(AZURE_CONVERSATION))
    assert azure.block_reuse_share is None
    assert azure.rate_per_s == pytest.approx(5.907, abs=1e-3)
    assert azure.gap_cv == pytest.approx(1.08, abs=0.01)
    assert azure.recommended_max_model_len == 14_144
    mooncake = describe(load_trace(MOONCAKE))
    assert mooncake.block_reuse_share == pytest.approx(0.326, abs=1e-3)
    assert mooncake.longest_request == 124_741
