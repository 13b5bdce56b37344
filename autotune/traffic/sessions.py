"""Which requests of a trace belong together, as far as shared prefixes tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from autotune.traffic.model import Trace
from objectives.arrays import I8

LARGEST_SHARE = 0.02
LEAST_LARGEST = 16


def sessions(trace: Trace) -> list[list[int]]:
    """Return the rows of each session in order of arrival, sessions by their first arrival.

    Requests are joined by the blocks that they share, the rarest blocks first, as long as no
    session gets more than a fiftieth of all requests, or 16 if those are more. So the turns of a
    conversation stay together, and a system prompt that everybody has joins nobody: it is reused
    whoever stays. A request that shares nothing is a session by itself.
    """
    count = len(trace.requests)
    joined = _Joined(count)
    if trace.meta.prefixes_known:
        most = max(LEAST_LARGEST, int(LARGEST_SHARE * count))
        for rows in _holders(trace, most):
            joined.join(rows, most)
    found: dict[int, list[int]] = {}
    for row in range(count):
        found.setdefault(joined.root(row), []).append(row)
    return list(found.values())


def _holders(trace: Trace, most: int) -> Iterator[list[int]]:
    """Yield the rows that have a block, for blocks of 2 to ``most`` rows, the rarest first."""
    blocks = [len(request.hash_ids) for request in trace.requests]
    ids = np.fromiter(chain.from_iterable(r.hash_ids for r in trace.requests), np.int64)
    _, block, held = np.unique(ids, return_inverse=True, return_counts=True)
    rows: I8 = np.repeat(np.arange(len(blocks)), blocks)
    shared = (held[block] > 1) & (held[block] <= most)
    block, rows = block[shared], rows[shared]
    # Blocks of as many rows in the order of their ids, which is the same in every run.
    order = np.lexsort((rows, block, held[block]))
    ends = np.flatnonzero(np.diff(block[order])) + 1
    for part in np.split(rows[order], ends):
        yield part.tolist()


class _Joined:
    """Disjoint sets of rows."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))
        self._size = [1] * count

    def root(self, row: int) -> int:
        while self._parent[row] != row:
            self._parent[row] = self._parent[self._parent[row]]
            row = self._parent[row]
        return row

    def join(self, rows: list[int], most: int) -> None:
        """Join the sets of ``rows``, unless they were more than ``most`` together."""
        roots = list(dict.fromkeys(map(self.root, rows)))
        total = sum(self._size[each] for each in roots)
        if total > most:
            return
        for each in roots[1:]:
            self._parent[each] = roots[0]
        for each in roots[:1]:
            self._size[each] = total
