from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.traffic.inspect import describe, dispersion_index
from autotune.traffic.likeness import Likeness, reused_share
from tests.autotune.traffic.examples import request, trace


def test_reuse_counts_tokens_of_unbroken_starts() -> None:
    built = trace(
        request(0, prompt=250, hash_ids=(1, 2, 3)),
        request(1, prompt=210, hash_ids=(1, 2, 4)),
        request(2, prompt=250, hash_ids=(9, 2, 3)),
        request(3, prompt=150, hash_ids=(1, 2)),
        block_size=100,
    )
    assert reused_share(built) == (200 + 0 + 150) / 860


def test_a_cache_forgets_what_was_used_longest_ago() -> None:
    built = trace(
        request(0, prompt=200, hash_ids=(1, 2)),
        request(1, prompt=200, hash_ids=(3, 4)),
        request(2, prompt=200, hash_ids=(1, 2)),
        block_size=100,
    )
    shares = [reused_share(built, cache_tokens=tokens) for tokens in (400, 399, 200, 0)]
    # Of the first prompt the last block goes first.
    assert shares == [200 / 600, 100 / 600, 0.0, 0.0]


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=30),
    st.integers(0, 30),
)
def test_a_larger_cache_of_chained_ids_serves_no_less(ids: list[list[int]], blocks: int) -> None:
    chained = [tuple(hash(tuple(row[: n + 1])) % 2**62 for n in range(len(row))) for row in ids]
    built = trace(
        *(request(n, prompt=10 * len(row), hash_ids=row) for n, row in enumerate(chained)),
        block_size=10,
    )
    small, large, unlimited = (
        reused_share(built, cache_tokens=tokens) for tokens in (10 * blocks, 1000, None)
    )
    assert small is not None
    assert large is not None
    assert 0 <= small <= large == unlimited


def test_reuse_is_unknown_where_prefixes_are() -> None:
    assert reused_share(trace(request(0), request(1), prefixes_known=False)) is None


def test_dispersion_is_that_of_inspect_at_one_second() -> None:
    at_s = np.random.default_rng(3).uniform(0, 60, 200)
    built = trace(*map(request, at_s.tolist()))
    assert dispersion_index(built) == describe(built).dispersion_index
    assert dispersion_index(built, window_s=31.0) is None


def test_dispersion_of_longer_windows() -> None:
    # Ten come in the first of two windows of 10 s, none in the other: 2 · 25 / 1 / 5.
    built = trace(*(request(n * 0.9) for n in range(10)), request(20.0))
    assert dispersion_index(built, window_s=10.0) == pytest.approx(10.0)


def test_figures_of_a_trace_at_one_instant_are_unknown() -> None:
    found = Likeness.of(trace(request(0), request(0)))
    assert (found.rate_per_s, found.dispersion_1s, found.dispersion_10s) == (None, None, None)
    assert found.reuse is not None
