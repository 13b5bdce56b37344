"""Three small fits: no less than zero, never falling, and one slope for several groups."""

from __future__ import annotations

import numpy as np

from objectives.arrays import F8, I8


def nonnegative(design: F8, target: F8) -> F8:
    """Return coefficients of least squares, none below zero.

    The most negative one is set to zero until none is left: not always the optimum of NNLS, but
    the same in all that matters for the few columns here.

    Args:
        design: [rows, columns].
        target: [rows].
    """
    kept = np.flatnonzero(np.any(design != 0, axis=0))
    result = np.zeros(design.shape[1])
    while kept.size:
        found = np.linalg.lstsq(design[:, kept], target, rcond=None)[0]
        if found.min() >= 0:
            result[kept] = found
            break
        kept = np.delete(kept, int(np.argmin(found)))
    return result


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
