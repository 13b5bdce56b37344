"""Which requests kept the limits, each for itself: the numerator of goodput."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from objectives.arrays import F8, Bools
from objectives.classes import LengthClass, class_mask
from objectives.latency import e2e_ms, tpot_ms, ttft_ms
from objectives.limits import Budget, Limit, check_classes
from objectives.samples import RequestSamples
from objectives.statistics import quantile_of

_PER_REQUEST: dict[str, Callable[[RequestSamples], F8]] = {
    "ttft": ttft_ms,
    "tpot": tpot_ms,
    "e2e": e2e_ms,
}


def request_keeps(
    budget: Budget, samples: RequestSamples, classes: Iterable[LengthClass]
) -> Bools:
    """Return which requests [n] keep every absolute limit that concerns them.

    As goodput of ``vllm bench serve``: the request's own TTFT, TPOT and E2E are held against
    the limit, whatever its aggregate. Of several limits on one metric and class the loosest
    counts, because the others speak of the typical request. A limit on ITL, which vLLM does
    not have there, is held against the same aggregate of the request's own gaps. What a
    request does not have (TPOT of a single token) breaks no limit; a lost one keeps none.

    Raises:
        ObjectiveError: a limit names a class that is not among ``classes``.
    """
    by_name = {each.name: each for each in classes}
    check_classes(budget, by_name.values())
    keeps = ~samples.lost
    for limit in _asked_of_each(budget):
        broken = _value_ms(limit, samples) > (limit.limit_ms or 0.0)
        if limit.class_name is not None:
            broken &= class_mask(samples.prompt_tokens, by_name[limit.class_name])
        keeps &= ~broken
    return keeps


def _asked_of_each(budget: Budget) -> list[Limit]:
    asked: dict[tuple[str, str | None, str], Limit] = {}
    for limit in budget.absolute:
        own_aggregate = limit.aggregate if limit.metric == "itl" else ""
        group = (limit.metric, limit.class_name, own_aggregate)
        rival = asked.get(group)
        if rival is None or (limit.limit_ms or 0.0) > (rival.limit_ms or 0.0):
            asked[group] = limit
    return list(asked.values())


def _value_ms(limit: Limit, samples: RequestSamples) -> F8:
    """One value per request; NaN where it has none."""
    if limit.metric == "itl":
        return _own_gaps_ms(limit.aggregate, samples)
    return _PER_REQUEST[limit.metric](samples)


def _own_gaps_ms(aggregate_name: str, samples: RequestSamples) -> F8:
    """Aggregate of each request's own gaps; NaN where it has none."""
    quantile = quantile_of(aggregate_name)
    gaps_ms, owner = samples.gap_s * 1000, samples.gap_request
    count = np.bincount(owner, minlength=len(samples))
    result = np.full(len(samples), np.nan)
    some = count > 0
    if quantile is None:
        sums = np.bincount(owner, weights=gaps_ms, minlength=len(samples))
        result[some] = sums[some] / count[some]
        return result
    ordered = gaps_ms[np.lexsort((gaps_ms, owner))]
    first = (np.cumsum(count) - count)[some]
    position = quantile * (count[some] - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, count[some] - 1)
    low, high = ordered[first + below], ordered[first + above]
    result[some] = low + (high - low) * (position - below)
    return result
