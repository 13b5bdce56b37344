"""What is known of a replay that is not over, and what it says about the whole.

Every request has a least latency already: one that waits has waited so long, one that runs takes
at least until now, one that is not due yet takes at least nothing. Aggregates grow with each of
their values, so those of the least latencies are lower bounds of what the whole replay would be
measured to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from objectives.arrays import F8, I8, Bools
from objectives.classes import LengthClass, class_mask
from objectives.limits import METRICS, metric_key
from objectives.samples import RequestSamples
from objectives.statistics import AGGREGATES, aggregate


@dataclass(frozen=True, slots=True)
class Lost:
    """A limit that no continuation of the replay can keep: ``at_least_ms > limit_ms``.

    Attributes:
        key: the value that it limits, such as ``ttft_p95@long``.
        limit_ms: the largest value that would have kept it.
        at_least_ms: lower bound of the value in the whole replay; inf by failed requests.
    """

    key: str
    limit_ms: float
    at_least_ms: float


@dataclass(frozen=True, slots=True)
class Censored:
    """Why and when a replay was cut short; its samples are those of a part.

    Attributes:
        lost: the limit that was lost by then.
        cut_s: when, in seconds from the start of the replay.
        requests: of the whole window.
        sent: those that had left by then.
        ended: those that had all their tokens or had failed by then.
    """

    lost: Lost
    cut_s: float
    requests: int
    sent: int
    ended: int

    @property
    def sent_share(self) -> float:
        return self.sent / self.requests


def censored(partial: RequestSamples, *, lost: Lost, cut_s: float) -> Censored | None:
    """Describe samples that were cut off at ``cut_s``; None if every request had ended."""
    open_rows = unfinished(partial)
    if not open_rows.any():
        return None
    return Censored(
        lost=lost,
        cut_s=cut_s,
        requests=len(partial),
        sent=int((~np.isnan(partial.sent_s)).sum()),
        ended=int((~open_rows).sum()),
    )


def unfinished(samples: RequestSamples) -> Bools:
    """Return which requests neither failed nor had all their tokens.

    A whole replay has none: there a request that ended short of its length has failed.
    """
    short: Bools = ~samples.failed & (samples.output_tokens < samples.expected_output_tokens)
    return short


def lower_bounds(
    partial: RequestSamples, *, cut_s: float, classes: Sequence[LengthClass]
) -> dict[str, float | None]:
    """Return what each latency of the whole replay would have been at least, in ms.

    Every request of the window counts, an unfinished one with its least latency at ``cut_s``.

    Args:
        partial: all requests of the window, with the stamps up to ``cut_s``.
        cut_s: seconds from the start of the replay.
        classes: bounds are also given for each of them.

    Returns:
        By the keys of ``Measurement.metrics``; None where the whole replay has no such value.
    """
    bounds: dict[str, float | None] = {}
    parts: dict[str | None, RequestSamples] = {None: partial}
    for each in classes:
        parts[each.name] = partial.select(class_mask(partial.prompt_tokens, each))
    for class_name, part in parts.items():
        so_far = SoFar.of(part, cut_s)
        for metric in METRICS:
            itl = metric == "itl"
            values = so_far.itl_ms(part.gap_s * 1000) if itl else so_far.per_request_ms(metric)
            for name in AGGREGATES:
                bounds[metric_key(metric, name, class_name)] = aggregate(values, name)
    return bounds


@dataclass(frozen=True, slots=True, eq=False)
class SoFar:
    """What is known of some requests at one moment; what follows holds however they go on."""

    now_s: float
    scheduled_s: F8
    first_s: F8
    last_s: F8
    tokens: I8
    expected: I8
    failed: Bools

    @classmethod
    def of(cls, partial: RequestSamples, now_s: float) -> Self:
        return cls(
            now_s,
            partial.scheduled_s,
            partial.first_token_s,
            partial.last_token_s,
            partial.output_tokens,
            partial.expected_output_tokens,
            partial.failed,
        )

    def select(self, mask: Bools) -> Self:
        arrays = (getattr(self, field.name)[mask] for field in fields(self)[1:])
        return type(self)(self.now_s, *arrays)

    @property
    def waiting(self) -> Bools:
        """Those without a token, not yet due ones included."""
        waiting: Bools = ~self.failed & np.isnan(self.first_s)
        return waiting

    @property
    def running(self) -> Bools:
        begun = ~self.failed & ~np.isnan(self.first_s)
        running: Bools = begun & (self.tokens < self.expected)
        return running

    def per_request_ms(self, metric: str) -> F8:
        """Least value of each request, NaN if it has none; by the formulas of ``latency``.

        The same operations in the same order round alike, so that a later stamp never gives
        less.
        """
        due_s = np.maximum(self.now_s, self.scheduled_s)
        end_s = np.where(self.running, self.now_s, self.last_s)
        if metric == "ttft":
            value = np.where(self.waiting, due_s, self.first_s) - self.scheduled_s
        elif metric == "e2e":
            value = np.where(self.waiting, due_s, end_s) - self.scheduled_s
        else:
            steps = np.where(self.expected > 1, self.expected - 1, np.nan)
            value = np.where(self.waiting, 0.0, end_s - self.first_s) / steps
        return np.where(self.failed, np.inf, value * 1000)

    @property
    def open_gap_ms(self) -> F8:
        """What each running request has waited for its next delivery."""
        return (self.now_s - self.last_s[self.running]) * 1000

    @property
    def gaps_to_come(self) -> int:
        """The most gaps that can still begin: one per token, where no delivery merges two."""
        left = self.expected - np.where(self.running, self.tokens, 0) - 1
        unfinished_rows = self.running | self.waiting
        return int(np.maximum(left[unfinished_rows], 0).sum())

    def itl_ms(self, gap_ms: F8) -> F8:
        """All gaps that there can be: those over, those open, and those to come, of nothing."""
        lost = np.full(int(self.failed.sum()), np.inf)
        return np.concatenate([gap_ms, self.open_gap_ms, lost, np.zeros(self.gaps_to_come)])
