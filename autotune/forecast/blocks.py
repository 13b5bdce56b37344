"""The KV cache of the simulated engine: blocks, and which of them another prompt can use again.

What vLLM's block pool does, as far as it decides who fits and what is cached. Free blocks without
content come first, then those with content that nobody uses, the longest unused first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autotune.forecast.compiled import compiled, numbers
from autotune.traffic.model import Trace
from objectives.arrays import I8

NOBODY = -1

# Counters of a pool.
PLAIN = 0  # free blocks without content
UNUSED = 1  # free blocks with content


class Keys(NamedTuple):
    """What the blocks of all requests hold, as numbers: equal ones hold the same tokens.

    Attributes:
        first: [requests + 1], where each request's blocks begin; all 0 without prefix caching.
        key: [full blocks of all requests], of prompt and output.
        different: how many different ones there are.
    """

    first: I8
    key: I8
    different: int


class Pool(NamedTuple):
    """The blocks of an engine.

    Attributes:
        counters: ``PLAIN`` and ``UNUSED``.
        uses: [keys], by how many requests a cached block is used; ``NOBODY`` where the key is
            not cached.
        older, newer: [keys + 1], neighbours among the cached blocks that nobody uses, in a ring
            that the last entry closes.
        owned: [full blocks of all requests], whether a request uses the cached block of this
            key, not a block of its own.
        held: [requests], blocks that each has.
        known: [requests], how many of its first blocks were looked at for caching.
    """

    counters: I8
    uses: I8
    older: I8
    newer: I8
    owned: I8
    held: I8
    known: I8


def block_keys(trace: Trace, *, block_size: int, caching: bool) -> Keys:
    """Number the full blocks of all requests by their content.

    Two blocks of prompts hold the same if their requests agree in all hash ids up to the one that
    covers the block's last token. What a model writes is different for every request.

    Args:
        trace: whose requests they are.
        block_size: tokens of an engine's block.
        caching: whether the engine looks for prefixes; if not, no block is numbered.
    """
    requests = trace.requests
    if not caching:
        return Keys(np.zeros(len(requests) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)
    chains: dict[tuple[int, int], int] = {}
    shared: dict[tuple[int, int], int] = {}
    first, keys = [0], []
    count = 0
    for request in requests:
        chain, chain_of = NOBODY, []
        for hash_id in request.hash_ids:
            chain = chains.setdefault((chain, hash_id), len(chains))
            chain_of.append(chain)
        total = (request.input_length + request.output_length) // block_size
        for number in range(total):
            covered = (number + 1) * block_size
            if covered > request.input_length:
                keys.append(count)
                count += 1
                continue
            place = chain_of[(covered - 1) // trace.meta.block_size], number
            found = shared.setdefault(place, count)
            count += found == count
            keys.append(found)
        first.append(len(keys))
    return Keys(np.array(first, dtype=np.int64), np.array(keys, dtype=np.int64), count)


def new_pool(keys: Keys, *, requests: int, blocks: int) -> Pool:
    """Return an empty cache of so many blocks, of which vLLM keeps one for itself."""
    ring = keys.different
    older, newer = np.zeros(ring + 1, dtype=np.int64), np.zeros(ring + 1, dtype=np.int64)
    older[ring] = newer[ring] = ring
    return Pool(
        counters=numbers(np.array([blocks - 1, 0])),
        uses=numbers(np.full(ring, NOBODY)),
        older=numbers(older),
        newer=numbers(newer),
        owned=numbers(np.zeros(len(keys.key), dtype=np.int64)),
        held=numbers(np.zeros(requests, dtype=np.int64)),
        known=numbers(np.zeros(requests, dtype=np.int64)),
    )


@compiled
def free_blocks(pool: Pool) -> int:
    return int(pool.counters[PLAIN] + pool.counters[UNUSED])


@compiled
def _unlink(pool: Pool, key: int) -> None:
    pool.newer[pool.older[key]] = pool.newer[key]
    pool.older[pool.newer[key]] = pool.older[key]
    pool.counters[UNUSED] -= 1


@compiled
def _link(pool: Pool, key: int) -> None:
    """Make a cached block the most recently used of those that nobody uses."""
    ring = len(pool.older) - 1
    last = pool.older[ring]
    pool.newer[last], pool.older[key] = key, last
    pool.newer[key], pool.older[ring] = ring, key
    pool.counters[UNUSED] += 1


@compiled
def cached_blocks(pool: Pool, keys: Keys, request: int, tokens: int, block_size: int) -> int:
    """Return how many blocks at the start of a request's ``tokens`` are in the cache.

    One token at least is left to compute.
    """
    if keys.different == 0:
        return 0
    most = (tokens - 1) // block_size
    found = 0
    while found < most and pool.uses[keys.key[keys.first[request] + found]] != NOBODY:
        found += 1
    return found


@compiled
def unused_among(pool: Pool, keys: Keys, request: int, blocks: int) -> int:
    """Return how many of a request's first cached blocks count as free."""
    found = 0
    for number in range(keys.first[request], keys.first[request] + blocks):
        found += pool.uses[keys.key[number]] == 0
    return found


@compiled
def use_cached(pool: Pool, keys: Keys, request: int, blocks: int) -> None:
    """Give a request, which has none yet, its first cached blocks."""
    for number in range(keys.first[request], keys.first[request] + blocks):
        key = keys.key[number]
        if pool.uses[key] == 0:
            _unlink(pool, key)
        pool.uses[key] += 1
        pool.owned[number] = 1
    pool.held[request] = pool.known[request] = blocks


@compiled
def take(pool: Pool, request: int, blocks: int) -> None:
    """Give a request so many new blocks, which are free."""
    pool.held[request] += blocks
    plain = min(blocks, pool.counters[PLAIN])
    pool.counters[PLAIN] -= plain
    for _ in range(blocks - plain):
        oldest = pool.newer[len(pool.older) - 1]
        _unlink(pool, oldest)
        pool.uses[oldest] = NOBODY


@compiled
def remember(pool: Pool, keys: Keys, request: int, tokens: int, block_size: int) -> None:
    """Put the full blocks of a request's first ``tokens`` into the cache, where they are new."""
    if keys.different == 0:
        return
    full = tokens // block_size
    for number in range(pool.known[request], full):
        place = keys.first[request] + number
        key = keys.key[place]
        if pool.uses[key] == NOBODY:
            pool.uses[key] = 1
            pool.owned[place] = 1
    pool.known[request] = max(pool.known[request], full)


@compiled
def give_back(pool: Pool, keys: Keys, request: int) -> None:
    """Free all blocks of a request, the last first: what is cached stays so until it is needed."""
    shared = 0
    for number in range(pool.known[request] - 1, -1, -1):
        place = keys.first[request] + number
        if pool.owned[place] == 1:
            pool.owned[place] = 0
            shared += 1
            key = keys.key[place]
            pool.uses[key] -= 1
            if pool.uses[key] == 0:
                _link(pool, key)
    pool.counters[PLAIN] += pool.held[request] - shared
    pool.held[request] = pool.known[request] = 0
