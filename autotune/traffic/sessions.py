"""Which requests of a trace belong together, as far as shared prefixes tell."""

from __future__ import annotations

from collections import defaultdict

from autotune.traffic.model import Trace

LARGEST_SHARE = 0.02
LEAST_LARGEST = 16


def sessions(trace: Trace) -> list[list[int]]:
    """Return the rows of each session in order of arrival, sessions by their first arrival.

    Requests are joined by the blocks that they share, the rarest blocks first, as long as no
    session gets more than a fiftieth of all requests, or 16 if those are more. So the turns of a
    conversation stay together, and a system prompt that everybody has joins nobody: it is reused
    whoever stays. A request that shares nothing is a session by itself.
    """
    holders: dict[int, list[int]] = defaultdict(list)
    for row, request in enumerate(trace.requests):
        for hash_id in dict.fromkeys(request.hash_ids):
            holders[hash_id].append(row)
    count = len(trace.requests)
    most = max(LEAST_LARGEST, int(LARGEST_SHARE * count))
    joined = _Joined(count)
    # The sort is stable: among blocks with as many holders, the one that came first.
    for rows in sorted((rows for rows in holders.values() if len(rows) > 1), key=len):
        if len(rows) <= most:
            joined.join(rows, most)
    found: dict[int, list[int]] = defaultdict(list)
    for row in range(count):
        found[joined.root(row)].append(row)
    return list(found.values())


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
        first = roots[0]
        for each in roots[1:]:
            self._parent[each] = first
        self._size[first] = total
