from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.errors import ObjectiveError
from objectives.samples import RequestSamples
from objectives.steps import Steps
from objectives.utilization import (
    Work,
    busy_s,
    prefix_hit_rate,
    step_flops,
    tokens_per_busy_s,
    useful_flops,
    useful_tokens,
    utilization,
)
from tests.objectives.builders import from_deliveries

WORK = Work(1e6, 1e3, 1e9, "vllm")
"""Tokens, pairs and samples can be read off the digits of a sum."""


def test_busy_is_the_union_of_unfinished_requests() -> None:
    samples = from_deliveries(
        [[1.0, 3.0], [1.5, 2.0], [2.5, 4.0], [11.0]], scheduled_s=[0.0, 1.0, 2.0, 10.0]
    )
    assert busy_s(samples) == pytest.approx(4.0 + 1.0)
    assert tokens_per_busy_s(samples) == pytest.approx((400 + 7) / 5)


def test_a_request_without_a_token_was_no_work() -> None:
    samples = from_deliveries([[1.0], []], scheduled_s=[0.0, 5.0], failed=[False, True])
    assert busy_s(samples) == pytest.approx(1.0)
    assert useful_tokens(samples) == 101


def test_a_cached_prefix_is_no_work() -> None:
    arrays = from_deliveries([[1.0, 2.0]], scheduled_s=[0.0]).to_arrays()
    samples = RequestSamples.from_arrays({**arrays, "cached_tokens": np.array([60])})
    assert useful_tokens(samples) == 42
    assert prefix_hit_rate(samples) == 0.6


def test_a_prompt_that_nobody_read_hits_no_cache() -> None:
    nobody = from_deliveries([[]], scheduled_s=[0.0], failed=[True])
    assert prefix_hit_rate(nobody) is None
    one_of_two = from_deliveries([[1.0], []], scheduled_s=[0.0, 5.0], failed=[False, True])
    arrays = {**one_of_two.to_arrays(), "cached_tokens": np.array([25, 0])}
    assert prefix_hit_rate(RequestSamples.from_arrays(arrays)) == 0.25


def test_what_was_never_sent_or_never_busy_has_no_rate() -> None:
    arrays = from_deliveries([[]], scheduled_s=[0.0]).to_arrays()
    samples = RequestSamples.from_arrays({**arrays, "sent_s": np.array([np.nan])})
    assert busy_s(samples) == 0.0
    assert tokens_per_busy_s(samples) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=12))
def test_busy_counts_each_second_once(spans: list[tuple[int, int]]) -> None:
    seconds = {second for start, length in spans for second in range(start, start + length)}
    samples = from_deliveries(
        [[float(start + length)] for start, length in spans],
        scheduled_s=[float(start) for start, _ in spans],
    )
    assert busy_s(samples) == len(seconds)


def one_request(prompt: int, cached: int, output: int) -> RequestSamples:
    arrays = from_deliveries(
        [[1.0 + 0.1 * number for number in range(output)]],
        scheduled_s=[0.0],
        prompt_tokens=[prompt],
    ).to_arrays()
    return RequestSamples.from_arrays({**arrays, "cached_tokens": np.array([cached])})


def test_useful_work_of_a_request_in_figures() -> None:
    # Prompt tokens 3 and 4 attend to 3 and 4; of three output tokens two are computed, at 5, 6.
    assert useful_flops(one_request(4, 2, 3), WORK) == 4 * 1e6 + (3 + 4 + 5 + 6) * 1e3 + 3 * 1e9


def test_a_request_without_a_token_earns_no_work() -> None:
    samples = from_deliveries([[1.0], []], scheduled_s=[0.0, 0.0], prompt_tokens=[1, 1000])
    assert useful_flops(samples, WORK) == 1e6 + 1e3 + 1e9


def test_utilization_is_useful_work_per_busy_second_over_the_best() -> None:
    samples = one_request(4, 2, 3)
    useful = useful_flops(samples, WORK)
    assert utilization(samples, WORK, useful) == pytest.approx(1 / busy_s(samples))
    assert utilization(from_deliveries([[]], scheduled_s=[0.0]), WORK, 1.0) is None


@pytest.mark.parametrize("best", [0.0, -1.0, float("nan")])
def test_a_best_that_is_not_positive_is_refused(best: float) -> None:
    with pytest.raises(ObjectiveError, match="must be positive"):
        utilization(one_request(4, 2, 3), WORK, best)


def no_steps(count: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    return {name: np.zeros(count) for name in Steps.__dataclass_fields__}


@given(
    prompt=st.integers(1, 60),
    share=st.floats(0, 1),
    output=st.integers(1, 20),
    chunk=st.integers(1, 70),
)
def test_the_steps_of_a_lone_request_execute_its_useful_work(
    prompt: int, share: float, output: int, chunk: int
) -> None:
    cached = int(share * (prompt - 1))
    edges = [*range(cached, prompt, chunk), prompt]
    rows = [(b - a, sum(range(a + 1, b + 1)), 0, 0) for a, b in itertools.pairwise(edges)]
    rows += [(0, 0, 1, length) for length in range(prompt + 1, prompt + output)]
    table = np.array(rows)
    steps = Steps(
        **{
            **no_steps(len(rows)),
            "prefill_tokens": table[:, 0],
            "prefill_pairs": table[:, 1],
            "decode_requests": table[:, 2],
            "decode_kv_tokens": table[:, 3],
            "requests": np.ones(len(rows)),
        }
    )
    # A chunk that does not end the prompt is sampled as well, for nothing.
    discarded = (len(edges) - 2) * WORK.flops_per_sample
    useful = useful_flops(one_request(prompt, cached, output), WORK)
    assert step_flops(steps, WORK).sum() == pytest.approx(useful + discarded, rel=1e-12)


def test_work_survives_json() -> None:
    assert Work.from_json(WORK.to_json()) == WORK


@pytest.mark.parametrize(
    "change",
    [
        {"flops_per_token": 0.0},
        {"flops_per_token": float("inf")},
        {"flops_per_pair": -1.0},
        {"flops_per_sample": None},
        {"flops_per_sample": float("nan")},
        {"source": "guess"},
        {"source": []},
    ],
)
def test_what_is_no_account_of_work_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ObjectiveError):
        Work.from_json({**WORK.to_json(), **change})


def test_work_without_its_figures_is_refused() -> None:
    with pytest.raises(ObjectiveError, match="no account"):
        Work.from_json({"source": "vllm"})
