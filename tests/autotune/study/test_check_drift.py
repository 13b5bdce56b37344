from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.study.check_drift import (
    DRIFT_P,
    Drifted,
    Flow,
    _q_ks,
    drift_between,
    drifted,
    effective_size,
    kolmogorov_smirnov,
)
from autotune.traffic.model import Trace, TraceRequest


def flow(seed: int, *, requests: int = 600, scale: float = 1.0, rate: float = 5.0) -> Flow:
    source = np.random.default_rng(seed)
    return Flow(
        arrivals_s=np.cumsum(source.exponential(1 / rate, requests)),
        prompt=np.round(scale * source.lognormal(6, 1, requests)) + 1,
        output=np.round(source.lognormal(4, 1, requests)) + 1,
        reused=None,
        dispersion=1.0,
    )


def rows(then: Flow, now: Flow) -> dict[str, Drifted]:
    return {row.name: row for row in drift_between(then, now)}


def test_the_same_traffic_has_not_moved() -> None:
    same = flow(1)
    found = rows(same, same)
    assert not drifted(tuple(found.values()))
    assert found["prompt_tokens"].distance == 0
    assert found["rate_per_s"].change == 0
    assert found["rate_per_s"].p == 1


def test_chance_alone_is_seldom_taken_for_drift() -> None:
    flagged = [
        drifted(drift_between(flow(2 * seed, requests=200), flow(2 * seed + 1, requests=200)))
        for seed in range(20)
    ]
    assert sum(map(bool, flagged)) <= 1


def test_longer_prompts_and_more_requests_are_drift() -> None:
    found = rows(flow(1), flow(2, scale=1.6, rate=8.0))
    assert {row.name for row in drifted(tuple(found.values()))} >= {
        "rate_per_s",
        "prompt_tokens",
        "prompt_p50",
    }
    assert not found["output_tokens"].matters
    assert found["rate_per_s"].change == pytest.approx(0.6, rel=0.2)


def test_a_change_that_is_certain_and_small_does_not_matter() -> None:
    then = flow(1, requests=20_000)
    found = rows(then, replace(then, prompt=then.prompt * 1.04 + 2))
    assert found["prompt_tokens"].beyond_noise
    assert not found["prompt_tokens"].matters


def test_of_few_requests_nothing_is_said() -> None:
    found = rows(flow(1, requests=8), flow(2, requests=8, scale=9.0))
    assert found["prompt_tokens"].beyond_noise is None
    assert found["prompt_p95"].beyond_noise is None
    assert not found["prompt_tokens"].matters


def test_bursts_make_a_rate_less_certain() -> None:
    then, now = flow(1, requests=400), flow(2, requests=400, rate=6.5)
    bursty = [replace(each, dispersion=20.0) for each in (then, now)]
    steady, uncertain = rows(then, now)["rate_per_s"], rows(*bursty)["rate_per_s"]
    assert steady.p is not None
    assert uncertain.p is not None
    assert steady.p < DRIFT_P < uncertain.p


def shared(fraction: float, requests: int = 400) -> Trace:
    """A trace of four blocks a prompt, of which a fraction begins as the first does."""
    source = np.random.default_rng(3)
    made = [
        TraceRequest(
            timestamp_ms=100.0 * row,
            input_length=64,
            output_length=4,
            hash_ids=(1, 2, 3, 1000 + row)
            if source.random() < fraction
            else tuple(range(10_000 + 4 * row, 10_004 + 4 * row)),
        )
        for row in range(requests)
    ]
    return Trace.build(made, block_size=16, prefixes_known=True, source="made")


def test_a_share_of_reused_prefixes_is_compared_in_plain_differences() -> None:
    then, now = Flow.of_trace(shared(0.2)), Flow.of_trace(shared(0.8))
    found = rows(then, now)["reused_share"]
    assert found.then == pytest.approx(0.15, abs=0.04)
    assert found.now == pytest.approx(0.6, abs=0.05)
    assert found.matters
    assert not rows(then, then)["reused_share"].matters
    few = Flow.of_trace(shared(0.5, requests=30))
    assert rows(few, few)["reused_share"].beyond_noise is None


def test_what_one_of_them_does_not_know_is_left_out() -> None:
    then = Flow.of_trace(shared(0.2))
    found = rows(then, replace(then, reused=None, dispersion=None))
    assert "reused_share" not in found
    assert "dispersion_10s" not in found


def test_requests_that_came_at_once_have_no_rate() -> None:
    at_once = replace(flow(1), arrivals_s=np.zeros(600), dispersion=None)
    found = rows(at_once, flow(2))["rate_per_s"]
    assert (found.then, found.change, found.beyond_noise, found.matters) == (
        None,
        None,
        None,
        False,
    )


def test_the_distance_is_that_of_the_distributions() -> None:
    then = np.arange(10, dtype=np.float64)
    distance, _ = kolmogorov_smirnov(then, then + 5, sizes=(10.0, 10.0))
    assert distance == pytest.approx(0.5)


@pytest.mark.parametrize(("z", "p"), [(1.358, 0.05), (1.628, 0.01), (1.949, 0.001), (0.1, 1.0)])
def test_p_is_that_of_the_tables_of_kolmogorov(z: float, p: float) -> None:
    assert _q_ks(z) == pytest.approx(p, rel=0.01)


@given(st.lists(st.integers(1, 50), min_size=4, max_size=60))
def test_p_is_a_probability(values: list[int]) -> None:
    then = np.array(values, dtype=np.float64)
    sizes = (float(then.size), float(then.size))
    distance, p = kolmogorov_smirnov(then, then[::-1] + 1, sizes=sizes)
    assert 0 <= distance <= 1
    assert 0 <= p <= 1
    assert kolmogorov_smirnov(then, then, sizes=sizes) == (0, 1)


def test_neighbours_that_repeat_each_other_are_worth_less() -> None:
    source = np.random.default_rng(5)
    independent = source.normal(size=4000)
    repeated = np.repeat(source.normal(size=400), 10)
    assert effective_size(independent) > 2000
    assert effective_size(repeated) < 1000
    assert effective_size(np.arange(10, dtype=np.float64)) == 10
