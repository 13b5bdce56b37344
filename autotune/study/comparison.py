"""How much two sides differ that replayed the same traffic, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.study.costs import draws_of
from objectives.arrays import F8
from objectives.classes import LengthClass
from objectives.measurement import point_values
from objectives.samples import RequestSamples

RESAMPLES = 1000
CONFIDENCE = 0.90
"""Of the intervals: an end lies beyond the truth in one case of twenty."""

_NOISE_SEED = 1


@dataclass(frozen=True, slots=True)
class Difference:
    """One latency of two sides, in ms.

    Attributes:
        metric: such as ``ttft_p95``.
        first: mean over the replays of the first side; None if it has none, inf if lost requests
            weigh so much.
        second: of the other.
        difference: ``second - first``; None unless both are finite.
        low: lower end of its interval; None where it has none.
        high: upper end.
    """

    metric: str
    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None

    @property
    def share(self) -> float | None:
        """The difference as a share of the first; None where that is 0 or missing."""
        if self.difference is None or not self.first:
            return None
        return self.difference / self.first

    @property
    def shown(self) -> bool:
        """Whether the interval leaves no doubt which side is lower."""
        if self.low is None or self.high is None:
            return False
        return self.low > 0 or self.high < 0


def differences(
    first: Sequence[RequestSamples],
    second: Sequence[RequestSamples],
    metrics: Sequence[str],
    *,
    classes: Sequence[LengthClass] = (),
) -> list[Difference]:
    """Compare all replays of one side with all of the other.

    All are of one trace, row by row. Requests are drawn in blocks, the same ones for every replay
    (see ``objectives.bootstrap``), and a side is the mean of its replays. On top comes the noise
    between replays where one side has more than one: it is pooled over both sides, and drawn as
    widely as Student's t of so many degrees of freedom. Where there are no repeats nothing is
    known of it, and the interval is that of the requests alone.
    """
    return [_difference(first, second, each, classes) for each in metrics]


def _difference(
    first: Sequence[RequestSamples],
    second: Sequence[RequestSamples],
    metric: str,
    classes: Sequence[LengthClass],
) -> Difference:
    sides = [[point_values(s, [metric], classes=classes)[metric] for s in side]
             for side in (first, second)]  # fmt: skip
    means = [_mean(side) for side in sides]
    known = [mean for mean in means if mean is not None and math.isfinite(mean)]
    if len(known) < 2:
        return Difference(metric, means[0], means[1], None, None, None)
    draws = _mean_draws(second, metric, classes) - _mean_draws(first, metric, classes)
    draws = draws + _noise(np.array(sides[0], float), np.array(sides[1], float))
    low, high = _ends(draws)
    return Difference(metric, means[0], means[1], known[1] - known[0], low, high)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def _mean_draws(side: Sequence[RequestSamples], metric: str, classes: Sequence[LengthClass]) -> F8:
    drawn = [draws_of(samples, metric, classes, resamples=RESAMPLES) for samples in side]
    mean: F8 = np.mean(drawn, axis=0)
    return mean


def _noise(first: F8, second: F8) -> F8:
    """Return draws of how far the means of two sides may be apart by noise between replays."""
    degrees = first.size + second.size - 2
    if not degrees:
        return np.zeros(RESAMPLES)
    squares = ((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum()
    scale = math.sqrt(squares / degrees * (1 / first.size + 1 / second.size))
    noise: F8 = scale * np.random.default_rng(_NOISE_SEED).standard_t(degrees, RESAMPLES)
    return noise


def _ends(draws: F8) -> tuple[float | None, float | None]:
    """Return the ends of the interval; None for one that too many lost requests leave open."""
    if np.isnan(draws).any():
        # Both sides drew lost requests: nobody knows by how much they differ.
        return None, None
    tail = (1 - CONFIDENCE) / 2
    ends = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
    low, high = (float(end) if math.isfinite(end) else None for end in ends)
    return low, high
