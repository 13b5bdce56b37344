"""Small fits that others are made of: least squares without negatives, medians, sums."""

from __future__ import annotations

import numpy as np

from objectives.arrays import F8, I8, Bools

USUAL_SIGMAS = 3.0

_ROUNDS = 6
_LEAST_VARIATION = 0.005
_MOST_EXCHANGES = 100
_RIDGE = 1e-7
_TOLERANCE = 1e-7


def nonnegative(gram: F8, moments: F8, start: Bools | None = None) -> F8:
    """Return the x >= 0 with the least x'Gx / 2 - m'x: block principal pivoting.

    After Kim and Park, Fast nonnegative matrix factorization, SIAM J. Sci. Comput. 33 (2011).

    Args:
        gram: [columns, columns], G.
        moments: [columns], m.
        start: which to hold for positive at first, all if None.
    """
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    used = np.diag(gram) > 0
    unit = gram / np.outer(scale, scale) + _RIDGE * np.eye(scale.size)
    target = moments / scale
    free = used.copy() if start is None else used & start
    tolerance = _TOLERANCE * float(np.abs(target).max(initial=0.0))
    least, patience = scale.size + 1, 3
    result = np.zeros(scale.size)
    for _ in range(_MOST_EXCHANGES):
        result = np.zeros(scale.size)
        result[free] = np.linalg.solve(unit[np.ix_(free, free)], target[free])
        gain = target - unit @ result
        wrong = (free & (result < 0)) | (used & ~free & (gain > tolerance))
        count = int(np.count_nonzero(wrong))
        if not count:
            break
        if count < least:
            least, patience = count, 3
        elif patience:
            patience -= 1
        else:
            # Exchanging the last alone always ends.
            last = int(np.flatnonzero(wrong)[-1])
            wrong = np.arange(scale.size) == last
        free = free ^ wrong
    return np.asarray(np.maximum(result, 0.0) / scale)


def robust_fit(design: F8, times_s: F8, weights: F8, *, sigmas: float = USUAL_SIGMAS) -> F8:
    """Return coefficients >= 0 with the least relative errors; stalls pull no harder than noise.

    Args:
        design: [rows, columns].
        times_s: [rows], above 0.
        weights: [rows], how much each counts.
        sigmas: as in ``bounded_pull``.
    """
    relative = design / times_s[:, None]
    pull = np.ones(times_s.size)
    found: F8 | None = None
    for _ in range(_ROUNDS):
        weighted = relative * (pull * weights)[:, None]
        start = None if found is None else found > 0
        found = nonnegative(weighted.T @ relative, weighted.sum(axis=0), start)
        pull = bounded_pull(np.abs(np.log(np.maximum(relative @ found, 1e-6))), sigmas=sigmas)
    return np.zeros(design.shape[1]) if found is None else found


def bounded_pull(off: F8, *, sigmas: float = USUAL_SIGMAS) -> F8:
    """Return the weights by which rows that are farther off pull no harder than at ``sigmas``."""
    bound = sigmas * max(_LEAST_VARIATION, 1.4826 * float(np.median(off)))
    return np.asarray(np.minimum(1.0, bound / np.maximum(off, 1e-9)))


def sums(bins: I8, values: F8) -> F8:
    """Return the sum of the values in each bin."""
    return np.asarray(np.bincount(bins, values), dtype=np.float64)


def weighted_median(values: F8, weights: F8) -> float:
    """Return the least value with half of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(mass, mass[-1] / 2)])


def common_slope(groups: I8, x: F8, y: F8) -> float | None:
    """Return the slope of ``y`` on ``x`` that rows of equal ``groups`` share, at least 0.

    The median of the slopes between any two rows of a group, weighted by their distance (after
    Theil and Sen), so that a few slow steps do not matter. None where in no group ``x`` doubles.
    """
    slopes, weights, doubled = [], [], False
    for group in np.unique(groups):
        own_x, own_y = x[groups == group], y[groups == group]
        doubled |= bool(own_x.max() >= 2 * own_x.min() > 0)
        first, second = np.triu_indices(own_x.size, 1)
        run = own_x[second] - own_x[first]
        apart = run != 0
        slopes.append((own_y[second] - own_y[first])[apart] / run[apart])
        weights.append(np.abs(run[apart]))
    if not doubled:
        return None
    return max(0.0, weighted_median(np.concatenate(slopes), np.concatenate(weights)))


def robust_sigma(values: F8) -> float:
    """Return the standard deviation of normal values that have this median deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
