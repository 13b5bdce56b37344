"""Whether traffic has the values that a budget limits."""

from __future__ import annotations

import numpy as np

from autotune.errors import UsageError
from autotune.traffic.model import Trace
from objectives.classes import LengthClass, class_mask
from objectives.limits import Budget, Limit, check_classes


def check_measurable(
    trace: Trace, budget: Budget, classes: tuple[LengthClass, ...], *, of: str = "the traffic"
) -> None:
    """Refuse a limit on what no request of the traffic can show.

    Nothing would keep it, and nothing could be said to be nearer to it than another.

    Args:
        trace: the traffic.
        budget: limits.
        classes: of prompt length.
        of: what the traffic is called.

    Raises:
        ObjectiveError: the budget names a class that there is not.
        UsageError: no request has a value that it limits.
    """
    check_classes(budget, classes)
    for limit in budget.limits:
        if requests_with(trace, limit, classes):
            continue
        of_class = "" if limit.class_name is None else f" of class {limit.class_name!r}"
        second = " with a second token" if limit.metric in _BETWEEN_TOKENS else ""
        raise UsageError(
            f"{limit.key} cannot be measured: {of} has no request{of_class}{second}",
            hint="leave that limit out, or choose another window or other classes",
        )


def requests_with(trace: Trace, limit: Limit, classes: tuple[LengthClass, ...]) -> int:
    """Return how many requests have the value that a limit is about.

    Those of its class alone, and where it is about time between tokens, of two tokens and more.
    """
    counted = np.ones(len(trace.requests), dtype=np.bool_)
    for each in classes:
        if each.name == limit.class_name:
            counted &= class_mask(trace.input_lengths, each)
    if limit.metric in _BETWEEN_TOKENS:
        counted &= trace.output_lengths > 1
    return int(counted.sum())


_BETWEEN_TOKENS = ("tpot", "itl")
