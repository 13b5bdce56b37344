"""The user's latency budget: resolve, check, and say by how much it is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from objectives.errors import ObjectiveError
from objectives.limits import Budget, Limit
from objectives.statistics import Interval


def resolve(budget: Budget, baseline_metrics: Mapping[str, float | None]) -> Budget:
    """Return the budget in ms: relative limits become multiples of the baseline's values.

    Where a value has both kinds of limit the stricter one is kept, in the place of the first.

    Raises:
        ObjectiveError: the baseline has no finite, positive value to be relative to.
    """
    strictest: dict[str, Limit] = {}
    for limit in budget.limits:
        absolute = _in_ms(limit, baseline_metrics)
        rival = strictest.get(limit.key)
        if rival is None or _limit_ms(absolute) < _limit_ms(rival):
            strictest[limit.key] = absolute
    return Budget(tuple(strictest.values()))


def _in_ms(limit: Limit, baseline_metrics: Mapping[str, float | None]) -> Limit:
    if limit.relative is None:
        return limit
    value = baseline_metrics.get(limit.key)
    if value is None or not (math.isfinite(value) and value > 0):
        raise ObjectiveError(
            f"{limit.text} is relative, but the baseline has no {limit.key}.",
            hint="give this limit in ms.",
        )
    return replace(limit, limit_ms=value * limit.relative, relative=None)


def _limit_ms(limit: Limit) -> float:
    if limit.limit_ms is None:
        raise ObjectiveError(
            f"{limit.text} is relative to a baseline that is not measured yet.",
            hint="resolve the budget first.",
        )
    return limit.limit_ms


def margins(budget: Budget, metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return value / limit − 1 per key: at most 0 is kept, 0.1 is 10 % too slow.

    None where ``metrics`` has no such value.

    Raises:
        ObjectiveError: the budget still has relative limits; see ``resolve``.
    """
    return {
        limit.key: _margin(metrics.get(limit.key), _limit_ms(limit)) for limit in budget.limits
    }


def upper_margins(budget: Budget, intervals: Mapping[str, Interval]) -> dict[str, float | None]:
    """As ``margins``, of the upper bounds: at most 0 is kept with confidence, None unknown."""
    highs = {key: bounds.high for key, bounds in intervals.items()}
    return margins(budget, highs)


def _margin(value: float | None, limit_ms: float) -> float | None:
    return None if value is None else value / limit_ms - 1


def is_feasible(budget: Budget, metrics: Mapping[str, float | None], failed_requests: int) -> bool:
    """Whether no request failed and every limit is kept by the point value.

    A limit on something that was not measured is not kept.
    """
    found = margins(budget, metrics).values()
    return failed_requests == 0 and all(each is not None and each <= 0 for each in found)


def latency_objectives(budget: Budget) -> tuple[str, str]:
    """Return the two latencies to minimise, as keys of a measurement.

    The budget's first line of the family ttft/e2e and its first of tpot/itl, else ``ttft_p95``
    and ``tpot_p95``.
    """

    def first(family: tuple[str, str], otherwise: str) -> str:
        keys = (limit.key for limit in budget.limits if limit.metric in family)
        return next(keys, otherwise)

    return first(("ttft", "e2e"), "ttft_p95"), first(("tpot", "itl"), "tpot_p95")
