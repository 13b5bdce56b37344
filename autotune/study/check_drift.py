"""How far traffic has moved since a study, and how much of that is more than chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from autotune.traffic.inspect import dispersion_index
from autotune.traffic.model import Trace
from objectives.arrays import F8
from objectives.samples import RequestSamples
from objectives.statistics import aggregate, quantile_of

DRIFT_P = 0.001
"""Two-sided p below which a difference is more than chance: with ten of them, one comparison in a
hundred finds one where there is none."""

_DRIFT_Z = 3.2905

DRIFT_LEAST = 0.1
"""Relative changes, and distances between distributions, below this do not matter, however
certain they are: neighbouring cells of a study differ by more."""

REUSE_LEAST = 0.05
"""The same for the share of prompt tokens that came before."""

_QUANTILES = ("p50", "p95", "p99")
_WINDOW_S = 10.0
_BATCHES = 20
_FEWEST = 20


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Traffic as far as it is compared, one entry a request in order of arrival.

    Attributes:
        arrivals_s: from the first request on.
        prompt: tokens.
        output: tokens.
        reused: tokens of each prompt whose blocks came before; None if prefixes are unknown.
        dispersion: variance over mean of arrivals in windows of ten seconds; None if too short.
    """

    arrivals_s: F8
    prompt: F8
    output: F8
    reused: F8 | None
    dispersion: float | None

    @classmethod
    def of_trace(cls, trace: Trace) -> Flow:
        """Return a trace's."""
        return cls(
            arrivals_s=trace.timestamps_s - trace.timestamps_s[0],
            prompt=trace.input_lengths.astype(np.float64),
            output=trace.output_lengths.astype(np.float64),
            reused=_reused(trace) if trace.meta.prefixes_known else None,
            dispersion=dispersion_index(trace, window_s=_WINDOW_S),
        )

    @classmethod
    def of_samples(cls, samples: RequestSamples) -> Flow:
        """Return that of a stored trial, which does not know prefixes."""
        return cls(
            arrivals_s=samples.scheduled_s - samples.scheduled_s[0],
            prompt=samples.prompt_tokens.astype(np.float64),
            output=samples.expected_output_tokens.astype(np.float64),
            reused=None,
            dispersion=None,
        )

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second, None if all came at once."""
        duration_s = float(self.arrivals_s[-1])
        return self.arrivals_s.size / duration_s if duration_s > 0 else None


@dataclass(frozen=True, slots=True)
class Drifted:
    """One figure of the traffic, then and now.

    Attributes:
        name: of the figure.
        then, now: its values; None where there is none.
        change: relative; of the share of reused tokens the plain difference.
        distance: largest difference of the two distributions, 0 to 1; None of single figures.
        p: probability of at least such a difference by chance; None where it is not a test.
        beyond_noise: None where nothing can be said.
        matters: whether it is beyond noise and large enough to ask for another look.
    """

    name: str
    then: float | None
    now: float | None
    change: float | None
    distance: float | None
    p: float | None
    beyond_noise: bool | None
    matters: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def drift_between(then: Flow, now: Flow) -> tuple[Drifted, ...]:
    """Return all figures that both have."""
    rows = [_rate(then, now)]
    if then.dispersion is not None and now.dispersion is not None:
        rows.append(_row("dispersion_10s", then.dispersion, now.dispersion))
    rows += _lengths("prompt", then.prompt, now.prompt)
    rows += _lengths("output", then.output, now.output)
    if then.reused is not None and now.reused is not None:
        rows.append(_reuse(then, now))
    return tuple(rows)


def kolmogorov_smirnov(then: F8, now: F8, *, sizes: tuple[float, float]) -> tuple[float, float]:
    """Return the largest distance of two distributions, and its p.

    The p is that of Press et al. (2007, Numerical Recipes, 3rd edition, 14.3.3), after Stephens
    (1970): Q((√n + 0.12 + 0.11/√n) D), n the harmonic size n₁n₂/(n₁+n₂). With ties, as whole
    numbers of tokens have, it is too large rather than too small.

    Args:
        then: one value a request.
        now: the same.
        sizes: how many independent values each is worth.
    """
    at = np.concatenate([then, now])
    steps = [np.searchsorted(np.sort(each), at, side="right") / each.size for each in (then, now)]
    distance = float(np.abs(steps[0] - steps[1]).max())
    root = math.sqrt(sizes[0] * sizes[1] / (sizes[0] + sizes[1]))
    return distance, _q_ks((root + 0.12 + 0.11 / root) * distance)


def _q_ks(z: float) -> float:
    """Return 2 Σ (−1)^(j−1) exp(−2 j² z²), the tail of Kolmogorov's distribution."""
    # Below this the sum needs many terms, and is 1 to four digits.
    if z < 0.3:
        return 1.0
    terms = (2 * (-1) ** (j - 1) * math.exp(-2 * j * j * z * z) for j in range(1, 101))
    return min(1.0, max(0.0, math.fsum(terms)))


def effective_size(values: F8) -> float:
    """Return how many independent values a sequence is worth.

    By batch means (Law, 2015, Simulation Modeling and Analysis, 5th edition, 9.5.3): the
    variance of the means of consecutive batches, times their size, is that of one value times
    what its neighbours repeat of it. Ranks are taken, so that no single value decides.
    """
    if values.size < 2 * _BATCHES:
        return float(values.size)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    size = values.size // _BATCHES
    means = ranks[: size * _BATCHES].reshape(_BATCHES, size).mean(axis=1)
    inflation = size * float(means.var(ddof=1)) / float(ranks.var(ddof=1))
    return values.size / max(1.0, inflation)


def _row(
    name: str,
    then: float | None,
    now: float | None,
    *,
    distance: float | None = None,
    p: float | None = None,
    beyond_noise: bool | None = None,
) -> Drifted:
    change = None
    if then is not None and now is not None and then > 0:
        change = now / then - 1
    size = distance if distance is not None else abs(change or 0.0)
    matters = bool(beyond_noise) and size >= DRIFT_LEAST
    return Drifted(name, then, now, change, distance, p, beyond_noise, matters)


def _rate(then: Flow, now: Flow) -> Drifted:
    """Compare rates as Poisson counts whose variance is as many times larger as it was seen."""
    rates = then.rate_per_s, now.rate_per_s
    if rates[0] is None or rates[1] is None:
        return _row("rate_per_s", *rates)
    variance = sum(
        max(1.0, flow.dispersion or 1.0) * rate / float(flow.arrivals_s[-1])
        for flow, rate in zip((then, now), rates, strict=True)
        if rate is not None
    )
    p = _normal_p((rates[1] - rates[0]) / math.sqrt(variance))
    return _row("rate_per_s", *rates, p=p, beyond_noise=p < DRIFT_P)


def _lengths(name: str, then: F8, now: F8) -> Iterator[Drifted]:
    """Compare the distributions as a whole, then some of their quantiles."""
    sizes = effective_size(then), effective_size(now)
    distance, p = kolmogorov_smirnov(then, now, sizes=sizes)
    few = min(then.size, now.size) < _FEWEST
    yield _row(
        f"{name}_tokens",
        float(then.mean()),
        float(now.mean()),
        distance=distance,
        p=None if few else p,
        beyond_noise=None if few else p < DRIFT_P,
    )
    for kind in _QUANTILES:
        yield _row(
            f"{name}_{kind}",
            aggregate(then, kind),
            aggregate(now, kind),
            beyond_noise=None if few else _apart(then, now, kind, sizes),
        )


def _apart(then: F8, now: F8, kind: str, sizes: tuple[float, float]) -> bool | None:
    """Whether the interval of the difference of two quantiles leaves out 0.

    The difference's interval is made of theirs by squaring and adding (Zou and Donner, 2008,
    Statistics in Medicine 27). None where there are too few requests to bound one of them.
    """
    old, new = (_bounds(*each, kind) for each in zip((then, now), sizes, strict=True))
    if old is None or new is None:
        return None
    change = new[1] - old[1]
    low = change - math.hypot(new[1] - new[0], old[2] - old[1])
    high = change + math.hypot(new[2] - new[1], old[1] - old[0])
    return low > 0 or high < 0


def _bounds(values: F8, size: float, kind: str) -> tuple[float, float, float] | None:
    """Return a quantile between its bounds: the quantiles as far off as chance may put it.

    After Woodruff (1952, Journal of the American Statistical Association 47).
    """
    quantile = quantile_of(kind)
    if quantile is None:
        return None
    off = _DRIFT_Z * math.sqrt(quantile * (1 - quantile) / size)
    if quantile - off < 0 or quantile + off > 1:
        return None
    low, middle, high = np.quantile(values, [quantile - off, quantile, quantile + off]).tolist()
    return low, middle, high


def _reuse(then: Flow, now: Flow) -> Drifted:
    """Compare shares of prompt tokens by batch means; the first half fills the cache."""
    parts = [_batched_share(flow) for flow in (then, now)]
    if any(each is None for each in parts):
        old, new = (_share(flow.reused, flow.prompt) for flow in (then, now))
        return Drifted("reused_share", old, new, new - old, None, None, None, False)
    (old, old_error), (new, new_error) = (each for each in parts if each is not None)
    error = math.hypot(old_error, new_error)
    change = new - old
    p = _normal_p(change / error) if error > 0 else (1.0 if change == 0 else 0.0)
    beyond = p < DRIFT_P
    matters = beyond and abs(change) >= REUSE_LEAST
    return Drifted("reused_share", old, new, change, None, p, beyond, matters)


def _batched_share(flow: Flow) -> tuple[float, float] | None:
    """Return the share of reused tokens in the second half and its standard error."""
    half = flow.prompt.size // 2
    if flow.reused is None or flow.prompt.size - half < 2 * _BATCHES:
        return None
    prompt, reused = flow.prompt[half:], flow.reused[half:]
    shares = [
        _share(*pair)
        for pair in zip(
            np.array_split(reused, _BATCHES), np.array_split(prompt, _BATCHES), strict=True
        )
    ]
    return _share(reused, prompt), float(np.std(shares, ddof=1)) / math.sqrt(_BATCHES)


def _share(reused: F8 | None, prompt: F8) -> float:
    return 0.0 if reused is None else float(reused.sum() / prompt.sum())


def _normal_p(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))


def _reused(trace: Trace) -> F8:
    """Return how many tokens of each prompt a cache that forgets nothing would have."""
    held: set[int] = set()
    found = []
    for request in trace.requests:
        known = sum(1 for _ in itertools.takewhile(held.__contains__, request.hash_ids))
        found.append(min(known * trace.meta.block_size, request.input_length))
        held.update(request.hash_ids)
    return np.array(found, dtype=np.float64)


def drifted(rows: Sequence[Drifted]) -> tuple[Drifted, ...]:
    """Return those that matter."""
    return tuple(row for row in rows if row.matters)
