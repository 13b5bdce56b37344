"""The blocks of a simulated KV cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.forecast.blocks import (
    NOBODY,
    PLAIN,
    UNUSED,
    Keys,
    block_keys,
    cached_blocks,
    free_blocks,
    give_back,
    new_pool,
    remember,
    take,
    unused_among,
    use_cached,
)
from autotune.traffic.model import Trace, TraceRequest
from tests.autotune.forecast.reference import requests_of

SIZE = 2


def trace_of(*rows: tuple[int, int, tuple[int, ...]], block_size: int = 4) -> Trace:
    """Return requests of prompt and output length and hash ids."""
    requests = [TraceRequest(0.0, prompt, output, ids) for prompt, output, ids in rows]
    return Trace.build(requests, block_size=block_size, prefixes_known=True, source="made up")


def keys_of(keys: Keys, request: int) -> list[int]:
    begin, end = keys.first[request : request + 2]
    return [int(key) for key in keys.key[begin:end]]


def test_blocks_are_the_same_as_long_as_all_ids_before_are() -> None:
    trace = trace_of((12, 2, (1, 2, 3)), (12, 2, (1, 9, 3)))
    keys = block_keys(trace, block_size=SIZE, caching=True)
    one, other = keys_of(keys, 0), keys_of(keys, 1)
    assert len(one) == len(other) == 7
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])
    assert keys.different == 12


def test_what_a_model_writes_is_its_own() -> None:
    trace = trace_of((3, 3, (1,)), (3, 3, (1,)))
    keys = block_keys(trace, block_size=SIZE, caching=True)
    one, other = keys_of(keys, 0), keys_of(keys, 1)
    # The second block has a token of output.
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])


def test_without_caching_no_block_has_a_number() -> None:
    keys = block_keys(trace_of((12, 2, (1, 2, 3))), block_size=SIZE, caching=False)
    assert keys.different == keys.key.size == 0
    assert keys.first.tolist() == [0, 0]


rows = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.integers(1, 5),
        st.lists(st.integers(0, 1), min_size=12, max_size=12),
    ),
    min_size=1,
    max_size=5,
)


@given(rows, st.integers(1, 5), st.integers(1, 5))
def test_keys_are_equal_where_all_tokens_up_to_there_are(
    given_rows: list[tuple[int, int, list[int]]], size: int, hashed: int
) -> None:
    trace = trace_of(
        *(
            (prompt, output, tuple(ids[: -(-prompt // hashed)]))
            for prompt, output, ids in given_rows
        ),
        block_size=hashed,
    )
    keys = block_keys(trace, block_size=size, caching=True)
    none = [0] * len(given_rows)
    requests = requests_of(trace, none, block_size=size, caching=True)
    contents = [content for each in requests for content in each.contents]
    numbers = keys.key.tolist()
    assert len(contents) == len(numbers)
    assert len(set(contents)) == len(set(numbers)) == keys.different
    assert len(set(zip(contents, numbers, strict=True))) == keys.different


def test_a_pool_keeps_one_block_for_the_engine_and_takes_plain_ones_first() -> None:
    trace = trace_of((8, 1, (1, 2)), (8, 1, (5, 6)))
    keys = block_keys(trace, block_size=SIZE, caching=True)
    pool = new_pool(keys, requests=2, blocks=8)
    assert free_blocks(pool) == 7
    take(pool, 0, 4)
    remember(pool, keys, 0, 8, SIZE)
    give_back(pool, keys, 0)
    assert list(pool.counters) == [3, 4]
    take(pool, 1, 4)
    assert list(pool.counters) == [0, 3]
    # The last block of a request goes first: what is before it is of use to more.
    assert cached_blocks(pool, keys, 0, 100, SIZE) == 3
    assert [int(pool.uses[key]) for key in keys_of(keys, 0)] == [0, 0, 0, NOBODY]


def test_what_was_unused_the_longest_goes_first() -> None:
    trace = trace_of((2, 1, (1,)), (2, 1, (2,)), (2, 1, (1,)), (4, 1, (3,)))
    keys = block_keys(trace, block_size=SIZE, caching=True)
    pool = new_pool(keys, requests=4, blocks=3)
    for request in (0, 1):
        take(pool, request, 1)
        remember(pool, keys, request, 2, SIZE)
        give_back(pool, keys, request)
    # Used once more, the older of both becomes the younger.
    use_cached(pool, keys, 2, 1)
    assert list(pool.counters) == [0, 1]
    give_back(pool, keys, 2)
    take(pool, 3, 1)
    assert cached_blocks(pool, keys, 0, 3, SIZE) == 1
    assert cached_blocks(pool, keys, 1, 3, SIZE) == 0


def test_one_token_is_left_to_compute() -> None:
    trace = trace_of((4, 1, (1,)))
    keys = block_keys(trace, block_size=SIZE, caching=True)
    pool = new_pool(keys, requests=1, blocks=5)
    take(pool, 0, 2)
    remember(pool, keys, 0, 4, SIZE)
    assert [cached_blocks(pool, keys, 0, tokens, SIZE) for tokens in (2, 3, 4, 5)] == [0, 1, 1, 2]


def test_only_what_nobody_uses_counts_as_free() -> None:
    trace = trace_of((4, 1, (1,)), (4, 1, (1,)))
    keys = block_keys(trace, block_size=SIZE, caching=True)
    pool = new_pool(keys, requests=2, blocks=5)
    take(pool, 0, 2)
    remember(pool, keys, 0, 4, SIZE)
    assert unused_among(pool, keys, 1, 2) == 0
    use_cached(pool, keys, 1, 2)
    give_back(pool, keys, 0)
    assert unused_among(pool, keys, 1, 2) == 0
    assert pool.counters[UNUSED] == 0
    give_back(pool, keys, 1)
    assert unused_among(pool, keys, 1, 2) == 2
    assert pool.counters[PLAIN] == 2


def test_a_block_that_two_compute_at_once_is_kept_once() -> None:
    trace = trace_of((2, 1, (1,)), (2, 1, (1,)))
    keys = block_keys(trace, block_size=SIZE, caching=True)
    pool = new_pool(keys, requests=2, blocks=5)
    for request in (0, 1):
        take(pool, request, 1)
        remember(pool, keys, request, 2, SIZE)
    give_back(pool, keys, 1)
    assert list(pool.counters) == [3, 0]
    give_back(pool, keys, 0)
    assert list(pool.counters) == [3, 1]
