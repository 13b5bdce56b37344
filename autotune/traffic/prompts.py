"""Prompts made from hash ids: no text, but the same prefixes as the recorded traffic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.traffic.hashing import key, mix, outputs
from objectives.arrays import I8

# Most vocabularies begin with padding, start, end and unknown.
FIRST_ORDINARY_ID = 4


def prompt_token_ids(
    hash_ids: Sequence[int] | NDArray[np.int64],
    input_length: int,
    *,
    block_size: int,
    seed: int,
    vocab_size: int,
    first_id: int = FIRST_ORDINARY_ID,
) -> I8:
    """Return the token ids of a prompt, shape ``(input_length,)``.

    A token depends on the seed, on the hash id of its block and on its place in that block,
    so equal ids give equal blocks, and a block that is cut short is the start of the whole.

    Args:
        hash_ids: one for each block of the prompt.
        input_length: tokens of the prompt.
        block_size: tokens that one hash id stands for.
        seed: another seed gives other prompts with the same sharing.
        vocab_size: all ids are below it.
        first_id: all ids are at or above it.

    Raises:
        UsageError: ``[first_id, vocab_size)`` has no ids, or hash ids are missing.
    """
    if not 0 <= first_id < vocab_size <= 2**32:
        raise UsageError(f"no token ids from {first_id} to below {vocab_size}")
    if len(hash_ids) * block_size < input_length:
        raise UsageError(
            f"{len(hash_ids)} hash ids of {block_size} tokens do not cover a prompt of "
            f"{input_length} tokens"
        )
    blocks = mix(key(seed) ^ np.asarray(hash_ids, dtype=np.uint64))
    places = np.arange(block_size, dtype=np.uint64)
    words = outputs(blocks[:, np.newaxis], places).reshape(-1)[:input_length]
    # Multiply and shift maps 32 random bits evenly and without a division (Lemire, 2019).
    ids = ((words >> np.uint64(32)) * np.uint64(vocab_size - first_id)) >> np.uint64(32)
    return ids.astype(np.int64) + first_id
