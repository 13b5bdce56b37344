"""The limits that are worth trying on an engine whose step times are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from autotune.candidates.lattice import MAX_SEQ_STEPS, MAX_TOKEN_STEPS, half_octaves, thin
from autotune.forecast.calibration import Calibration, Point

LEAST_GAIN = 0.02
"""Of time per token, by which the last size before a jump beats the plain rung beside it."""


def worthwhile_budgets(
    calibration: Calibration, *, tile: int, low: int, top: int, most: int = MAX_TOKEN_STEPS
) -> tuple[int, ...]:
    """Return step budgets, each the last point before a jump where one is near.

    One for each half octave from ``low`` to ``top``: the plain rung if it is such a point, else
    the one around it with the least time per token, if that is less than the rung's. Where no
    edge stands out of the noise, the ladder is the plain one. The capture limit, if a multiple of
    the tile, and ``top`` are always on it.

    Args:
        calibration: of the engine.
        tile: what all but ``top`` are multiples of.
        low: the smallest budget.
        top: the largest.
        most: how many at most.
    """
    points = {each.tokens: each for each in calibration.points}
    edges = [
        edge.from_tokens
        for edge in calibration.edges
        if edge.from_tokens % tile == 0 and low <= edge.from_tokens <= top
    ]
    plain = half_octaves(tile, low, top)
    # A rung speaks for the sizes up to the middle, in ratio, between it and the next.
    bounds = [0.0, *(math.sqrt(a * b) for a, b in itertools.pairwise(plain)), math.inf]
    values = {top}
    for rung, (below, above) in zip(plain, itertools.pairwise(bounds), strict=False):
        values.add(_best(rung, [edge for edge in edges if below <= edge < above], points))
    limit = calibration.capture_limit
    kept = [limit] if limit is not None and limit % tile == 0 and low <= limit <= top else []
    return thin(sorted(values | set(kept)), most, keep=kept)


def _best(rung: int, edges: Sequence[int], points: Mapping[int, Point]) -> int:
    """Return the rung, or the edge near it that is clearly cheaper for each token."""
    if rung in edges or not edges:
        return rung
    best = min(edges, key=lambda size: (_per_token(points[size]), size))
    if rung in points and _per_token(points[best]) >= (1 - LEAST_GAIN) * _per_token(points[rung]):
        return rung
    return best


def _per_token(point: Point) -> float:
    return point.median_ms / point.tokens


def sequence_caps(
    capture_sizes: Sequence[int], *, tile: int, top: int, most: int = MAX_SEQ_STEPS
) -> tuple[int, ...]:
    """Return sequence caps up to ``top``: plain rungs, up to the capture limit on captured sizes.

    A batch between two captured sizes is computed as the larger of them, so that a cap there
    pays for requests that it keeps out. Without CUDA graphs the rungs are the plain ones.

    Args:
        capture_sizes: token counts for which there are CUDA graphs.
        tile: what all caps are multiples of.
        top: the largest cap that is of use.
        most: how many at most.
    """
    captured = sorted(size for size in capture_sizes if size % tile == 0 and size <= top)
    limit = max(captured, default=0)
    rungs = half_octaves(tile, tile, top)
    on = {min(captured, key=lambda size: abs(size - rung)) for rung in rungs if rung <= limit}
    caps = sorted(on | {rung for rung in rungs if rung > limit})
    return thin(caps, most, keep=[limit]) if caps else ()
