"""The moving-block bootstrap over requests, without building the resampled values.

A resample is a weight per request: how often it was drawn. Values are sorted once; the order
statistic of a resample is then looked up in the cumulative weights. That is exact, and cheap
even for the pooled gaps between tokens, where the request, not the gap, is what is drawn.
"""

from __future__ import annotations

import numpy as np

from objectives.arrays import F8, I8

# Coarse steps of the look-up: more cost memory, fewer cost time.
_MOST_STEPS = 512


def default_block(requests: int) -> int:
    """Length of a block: a twentieth of the requests, within 50 and 150, at most a quarter.

    Requests that meet in a queue are late together. Blocks shorter than a busy spell give
    intervals that are too narrow; more than a quarter leaves too few blocks to draw from, so
    below 200 requests the block is a quarter of them.
    """
    return max(1, min(requests // 4, 150, max(50, requests // 20)))


def block_bootstrap_indices(n: int, *, block: int, resamples: int, rng: np.random.Generator) -> I8:
    """Draw rows [resamples, n] as runs of ``block`` successive rows, in arrival order.

    The moving-block bootstrap of Künsch (1989, Annals of Statistics 17): the starts of the
    runs are uniform over all rows where a whole block fits; the last run is cut to length.
    """
    block = min(block, n)
    if n == 0:
        return np.zeros((resamples, 0), dtype=np.int64)
    starts = rng.integers(0, n - block + 1, size=(resamples, -(-n // block)))
    rows = starts[:, :, None] + np.arange(block)
    return rows.reshape(resamples, -1)[:, :n].astype(np.int64)


def resample_weights(n: int, *, resamples: int, seed: int, block: int | None = None) -> F8:
    """Return how often each resample draws each request: [resamples, n], rows sum to n.

    Equal ``n`` and ``seed`` give equal draws, so two replays of one trace are resampled in
    pairs.
    """
    rng = np.random.default_rng(seed)
    rows = block_bootstrap_indices(
        n, block=block or default_block(n), resamples=resamples, rng=rng
    )
    flat = rows + n * np.arange(resamples)[:, None]
    counts = np.bincount(flat.ravel(), minlength=resamples * n)
    return counts.reshape(resamples, n).astype(np.float64)


class Resampled:
    """Values without NaN that belong to requests, under the weights of the resamples.

    Args:
        values: [k], inf allowed.
        owner: [k], the request (column of ``weights``) that each value belongs to.
        weights: [resamples, requests].
    """

    def __init__(self, values: F8, owner: I8, weights: F8) -> None:
        order = np.argsort(values)
        self._values = values[order]
        self._owner = owner[order]
        self._weights = weights
        steps = max(1, min(_MOST_STEPS, int(np.sqrt(values.size))))
        self._step = max(1, -(-values.size // steps))
        self._before = self._cumulative_at_steps()

    def _cumulative_at_steps(self) -> F8:
        """[resamples, steps + 1]: weight of all values before each step; the last is the total."""
        requests = self._weights.shape[1]
        step = np.arange(self._values.size) // self._step
        steps = int(step[-1]) + 1 if step.size else 0
        counts = np.bincount(step * requests + self._owner, minlength=steps * requests)
        # Whole numbers below 2^24 are exact in float32, which is ten times as fast here.
        per_step = self._weights.astype(np.float32) @ (
            counts.reshape(steps, requests).T.astype(np.float32)
        )
        return np.pad(np.cumsum(per_step, axis=1, dtype=np.float64), ((0, 0), (1, 0)))

    def means(self) -> F8:
        """[resamples]; NaN where a resample drew no value, inf where it drew an infinite one."""
        requests = self._weights.shape[1]
        finite = np.isfinite(self._values)
        sums = np.bincount(self._owner[finite], weights=self._values[finite], minlength=requests)
        endless = np.bincount(self._owner[~finite], minlength=requests) > 0
        total = self._before[:, -1]
        mean = self._weights @ sums / np.where(total > 0, total, np.nan)
        return np.where((self._weights[:, endless] > 0).any(axis=1), np.inf, mean)

    def quantiles(self, q: float) -> F8:
        """[resamples]; linear between order statistics; NaN where a resample drew no value."""
        total = self._before[:, -1]
        drawn = total > 0
        position = q * np.maximum(total - 1, 0)
        below = np.floor(position)
        above = np.minimum(below + 1, np.maximum(total - 1, 0))
        result = np.full(total.size, np.nan)
        if drawn.any():
            low, high = self._at_rank(below), self._at_rank(above)
            result[drawn] = interpolate(low, high, position - below)[drawn]
        return result

    def _at_rank(self, rank: F8) -> F8:
        """Value of the given rank (from 0) in each resample."""
        bracket = np.sum(self._before[:, 1:] <= rank[:, None], axis=1)
        bracket = np.minimum(bracket, self._before.shape[1] - 2)
        columns = bracket[:, None] * self._step + np.arange(self._step)
        inside = columns < self._values.size
        columns = np.minimum(columns, self._values.size - 1)
        rows = np.arange(rank.size)
        weight = self._weights[rows[:, None], self._owner[columns]] * inside
        cumulative = self._before[rows, bracket][:, None] + np.cumsum(weight, axis=1)
        place = np.minimum(np.sum(cumulative <= rank[:, None], axis=1), self._step - 1)
        found: F8 = self._values[columns[rows, place]]
        return found


def interpolate(low: F8, high: F8, fraction: F8) -> F8:
    """Linear from ``low`` to ``high``; any way towards an infinite ``high`` is infinite."""
    step = np.zeros_like(low)
    np.subtract(high, low, out=step, where=np.isfinite(high))
    towards = np.where(np.isfinite(high), low + step * fraction, np.inf)
    return np.where((fraction == 0) | (low == high), low, towards)
