"""Where a step gets dearer by one more token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from objectives.arrays import F8

EdgeKind = Literal["capture", "tile"]

LEAST_JUMP = 0.03
"""Of step time, below which an edge changes nothing that a user could feel."""
LEAST_SIGMAS = 4.0
LEAST_REPEATS = 3
QUANTUM_JUMP = 0.05
"""Of step time, at the edges that make a quantum."""

_QUANTA = (256, 128, 64, 32, 16)
_LEAST_MULTIPLES = 3


@dataclass(frozen=True, slots=True)
class Edge:
    """A step of ``from_tokens`` is worth its time, one of ``to_tokens`` takes much longer.

    Attributes:
        from_tokens: the last size before the jump.
        to_tokens: the first after it.
        jump_ms: by how much the median step time rises.
        jump_ratio: the same as a share of the time before.
        kind: ``capture`` at the largest captured CUDA graph, else ``tile``.
    """

    from_tokens: int
    to_tokens: int
    jump_ms: float
    jump_ratio: float
    kind: EdgeKind


def find_edges(times_ms: Mapping[int, F8], *, capture_limit: int | None) -> tuple[Edge, ...]:
    """Return the jumps between M and M + 1 tokens that stand out of what repeats vary by.

    A jump counts where it is at least 3 % of the step time and 4 standard errors more than in
    proportion to the tokens, and three quarters of the repeats below it are faster than three
    quarters of those above.

    Args:
        times_ms: the repeats for each number of tokens.
        capture_limit: the largest captured size, None without CUDA graphs.
    """
    common = _variation(times_ms.values())
    found = []
    for tokens in sorted(set(times_ms) & {size - 1 for size in times_ms}):
        below, above = times_ms[tokens], times_ms[tokens + 1]
        before_ms, after_ms = float(np.median(below)), float(np.median(above))
        ratio = after_ms / before_ms - 1
        variation = max(common, _variation([below, above]))
        error = 1.25 * variation * np.sqrt(1 / below.size + 1 / above.size)
        if (
            min(below.size, above.size) >= LEAST_REPEATS
            and ratio - 1 / tokens >= max(LEAST_JUMP, LEAST_SIGMAS * error)
            and np.quantile(below, 0.75) < np.quantile(above, 0.25)
        ):
            kind: EdgeKind = "capture" if tokens == capture_limit else "tile"
            found.append(Edge(tokens, tokens + 1, after_ms - before_ms, ratio, kind))
    return tuple(found)


def find_quantum(edges: Sequence[Edge], measured: Sequence[int]) -> int | None:
    """Return the largest q such that jumps of 5 % repeat at M = kq + 1, None without any.

    At least three jumps lie at multiples of q, which are four in five of all, and half of the
    multiples that were measured between the first and the last of them have one. Below the first
    a CUDA graph's padding or the launches may hide the tiles, above the last they are too small.

    Args:
        edges: what ``find_edges`` returned; the capture limit makes no quantum.
        measured: all sizes that were measured.
    """
    jumps = {
        edge.from_tokens
        for edge in edges
        if edge.kind == "tile" and edge.jump_ratio >= QUANTUM_JUMP
    }
    sizes = set(measured)
    pairs = {size for size in sizes if size + 1 in sizes}
    for quantum in _QUANTA:
        hits = {size for size in jumps if size % quantum == 0}
        if len(hits) < max(_LEAST_MULTIPLES, 0.8 * len(jumps)):
            continue
        between = range(min(hits), max(hits) + 1, quantum)
        if len(hits) >= len(pairs.intersection(between)) / 2:
            return quantum
    return None


def _variation(groups: Iterable[F8]) -> float:
    """Return the relative standard deviation of a repeat, from differences between any two.

    Unlike deviations from a median, those of three repeats are not too small.
    """
    differences = [
        np.abs(np.subtract.outer(each, each)[np.triu_indices(each.size, 1)]) / np.median(each)
        for each in groups
    ]
    together = np.concatenate([*differences, np.empty(0)])
    return float(np.median(together)) / (0.6745 * 2**0.5) if together.size else 0.0
