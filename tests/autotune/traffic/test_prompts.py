from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.traffic.prompts import FIRST_ORDINARY_ID, prompt_token_ids

GOLDEN = [
    18521,
    18438,
    27896,
    19068,
    12733,
    25844,
    9505,
    20235,
    25716,
    23604,
    4442,
    2105,
    9539,
    30119,
    31488,
    1724,
    25134,
    14447,
    27422,
    9499,
]


def test_tokens_are_pinned() -> None:
    found = prompt_token_ids([0, 2**63 - 1], 20, block_size=16, seed=1, vocab_size=32_000)
    assert found.dtype == np.int64
    assert found.tolist() == GOLDEN


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = (
        "from autotune.traffic.prompts import prompt_token_ids as p;"
        "print(p([0, 2**63 - 1], 20, block_size=16, seed=1, vocab_size=32_000).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(GOLDEN)


@given(
    st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=6, unique=True),
    st.integers(-(2**70), 2**70),
    st.integers(1, 40),
)
def test_equal_ids_give_equal_blocks(ids: list[int], seed: int, block_size: int) -> None:
    def tokens(*hash_ids: int, length: int) -> list[int]:
        found = prompt_token_ids(
            hash_ids, length, block_size=block_size, seed=seed, vocab_size=50_000
        )
        return [int(token) for token in found]

    shared, *rest = ids
    short = tokens(shared, length=(block_size + 1) // 2)
    long = tokens(shared, *rest, length=block_size * len(ids))
    assert long[: len(short)] == short
    swapped = tokens(*rest, shared, length=block_size * len(ids))
    assert swapped[block_size * len(rest) :] == long[:block_size]


def test_ids_seeds_and_places_give_different_tokens() -> None:
    def tokens(hash_id: int, seed: int) -> list[int]:
        found = prompt_token_ids([hash_id], 64, block_size=64, seed=seed, vocab_size=2**32)
        return [int(token) for token in found]

    found = [tokens(hash_id, seed) for hash_id in range(20) for seed in range(20)]
    assert len({token for each in found for token in each}) > 0.999 * 400 * 64
    assert all(left != right for left, right in pairwise(found))


def test_tokens_fill_their_range_evenly() -> None:
    found = prompt_token_ids(
        range(100), 51_200, block_size=512, seed=0, vocab_size=20, first_id=10
    )
    counts = np.bincount(found, minlength=20)
    assert counts[:10].sum() == 0
    assert np.all(np.abs(counts[10:] - 5120) < 300)


def test_first_tokens_of_the_vocabulary_are_left_alone() -> None:
    found = prompt_token_ids([5], 512, block_size=512, seed=0, vocab_size=8)
    assert set(found.tolist()) == set(range(FIRST_ORDINARY_ID, 8))


def test_arrays_of_ids_are_taken() -> None:
    ids = np.array([3, 4], dtype=np.int64)
    found = prompt_token_ids(ids, 9, block_size=8, seed=0, vocab_size=100)
    assert (
        found.tolist()
        == prompt_token_ids([3, 4], 9, block_size=8, seed=0, vocab_size=100).tolist()
    )


@pytest.mark.parametrize(("first_id", "vocab_size"), [(-1, 100), (100, 100), (0, 2**32 + 1)])
def test_an_impossible_vocabulary_is_refused(first_id: int, vocab_size: int) -> None:
    with pytest.raises(UsageError, match="no token ids"):
        prompt_token_ids([0], 1, block_size=16, seed=0, vocab_size=vocab_size, first_id=first_id)


def test_missing_ids_are_refused() -> None:
    with pytest.raises(UsageError, match="1 hash ids of 16 tokens do not cover a prompt of 17"):
        prompt_token_ids([0], 17, block_size=16, seed=0, vocab_size=100)
