"""Where a replay that was simulated to its end would have been cut short."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.engine.protocol import PROGRESS_EVERY_S
from autotune.forecast.simulation import Simulated
from objectives.abort import AbortWatch
from objectives.arrays import F8
from objectives.censoring import Censored, Lost, censored
from objectives.classes import LengthClass
from objectives.limits import Budget
from objectives.samples import RequestSamples
from objectives.steps import Steps


@dataclass(slots=True)
class _Now:
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a client has of one request by now; see ``objectives.abort.Answer``."""

    now: _Now
    all_s: Sequence[float]
    expected: int

    @property
    def deliveries_s(self) -> Sequence[float]:
        return self.all_s[: self.tokens]

    @property
    def tokens(self) -> int:
        return bisect_right(self.all_s, self.now.at_s)

    @property
    def failed(self) -> bool:
        return False

    @property
    def ended(self) -> bool:
        return self.tokens == self.expected


def cut_at_loss(
    whole: Simulated, budget: Budget, classes: Sequence[LengthClass]
) -> tuple[RequestSamples, Steps, Censored | None]:
    """Return a replay up to where it had lost its budget for certain, all of it if it never had.

    Args:
        whole: to its end.
        budget: limits in ms.
        classes: those that the budget may name.

    Raises:
        ObjectiveError: a limit that is relative, or on an unknown class.
    """
    samples, deliveries = whole.samples, _deliveries(whole.samples)
    now = _Now()
    answers = [
        _Answer(now, each.tolist(), int(expected))
        for each, expected in zip(deliveries, samples.expected_output_tokens, strict=True)
    ]
    watch = AbortWatch(
        budget,
        classes,
        answers,
        scheduled_s=samples.scheduled_s,
        prompt_tokens=samples.prompt_tokens,
        expected_output_tokens=samples.expected_output_tokens,
    )
    found = _first_loss(
        watch, now, end_s=max((each.all_s[-1] for each in answers if each.all_s), default=0.0)
    )
    if found is None:
        return samples, whole.steps, None
    lost, cut_s = found
    partial = _until(samples, deliveries, cut_s)
    why = censored(partial, lost=lost, cut_s=cut_s)
    if why is None:
        return samples, whole.steps, None
    return partial, whole.steps.select(whole.steps.done_s <= cut_s), why


def _first_loss(watch: AbortWatch, now: _Now, *, end_s: float) -> tuple[Lost, float] | None:
    for look in itertools.count(1):
        now.at_s = look * PROGRESS_EVERY_S
        if now.at_s >= end_s:
            return None
        lost = watch.lost(now.at_s)
        if lost is not None:
            return lost, now.at_s
    return None


def _deliveries(samples: RequestSamples) -> list[F8]:
    """Return when each request's tokens came."""
    order = np.argsort(samples.gap_request, kind="stable")
    gaps_of = np.split(
        samples.gap_s[order],
        np.searchsorted(samples.gap_request[order], np.arange(1, len(samples))),
    )
    return [
        np.empty(0) if np.isnan(first_s) else first_s + np.concatenate([[0.0], np.cumsum(gaps_s)])
        for first_s, gaps_s in zip(samples.first_token_s, gaps_of, strict=True)
    ]


def _until(samples: RequestSamples, deliveries: Sequence[F8], cut_s: float) -> RequestSamples:
    """Return what a client had seen by ``cut_s``."""
    seen = [each[each <= cut_s] for each in deliveries]
    nan = float("nan")
    gaps = [np.diff(each) for each in seen]
    return replace(
        samples,
        sent_s=np.where(samples.sent_s <= cut_s, samples.sent_s, nan),
        first_token_s=np.array([each[0] if each.size else nan for each in seen]),
        last_token_s=np.array([each[-1] if each.size else nan for each in seen]),
        output_tokens=np.array([each.size for each in seen], dtype=np.int64),
        cached_tokens=np.where([each.size > 0 for each in seen], samples.cached_tokens, 0),
        failed=np.zeros(len(samples), dtype=np.bool_),
        gap_s=np.concatenate(gaps),
        gap_request=np.repeat(np.arange(len(gaps)), [each.size for each in gaps]),
    )
