from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.samples import RequestSamples
from objectives.utilization import busy_s, tokens_per_busy_s, useful_tokens
from tests.objectives.builders import from_deliveries


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
