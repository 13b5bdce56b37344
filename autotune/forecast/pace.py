"""Whether an engine kept its pace: slow spells within a replay, drift between two.

A host may slow down by 10 to 25 % for seconds to a minute. Such a spell says nothing about the
candidate, so a replay that one has hit is repeated. Steps are compared at equal work only, and by
sums and medians, since single step times are blurred where steps are planned ahead.

The sweep is no measure for this: with one step in flight a step takes a third longer than with
two, and by another ratio for each kind of step and each candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.forecast.fitting import robust_fit, sums, weighted_median
from objectives.arrays import F8, I8, Bools
from objectives.steps import Steps

STEADY = 0.02
"""A warm-up whose drift is less than this has done its work."""
LEAST_SPELL_S = 2.0
LEAST_FACTOR = 1.08
"""On recorded replays without a spell the slowest 2 s are up to 1.05 times as slow as the rest,
and up to 1.10 times where the last requests are decoded in large batches: see ``_stands_out``."""
LEAST_SIGMAS = 5.0
"""By how much a spell stands out of what seconds of the rest vary by."""
LEAST_SUPPORT = 0.4
"""Of a spell's time, what the rest has to have of equal work. Of spells put into recorded replays
it has 0.55 and more; of the drains that were once taken for spells, 0.26."""

_BIN_S = 0.25
_SECOND = 4  # bins
_MOST_BINS = 600
_BINS_A_PRICE = 3
_LEAST_REST = 0.15
_WORTH_A_REFIT = 1.03
_LEAST_VARIATION = 0.005
_SIGMAS = 1.5

_BINS_AN_OCTAVE = 4
_LEAST_STEPS = 5
_LEAST_SHARED = 0.25


@dataclass(frozen=True, slots=True)
class Spell:
    """A time in which steps took ``factor`` times as long as equal work did otherwise.

    Times are on the clock of the replay's steps.
    """

    begin_s: float
    end_s: float
    factor: float


def slow_spell(
    steps: Steps, *, reference: Sequence[Steps] = (), capture_limit: int | None = None
) -> Spell | None:
    """Return the slow spell that hit a replay, None if nothing shows one.

    A spell within the replay is found by contrast with the rest of it, and needs no reference;
    it is none if equal work took as long in the accepted replays, or is rare in the rest. Traffic
    that ends, for one, leaves large batches to decode alone, whose time is in no proportion to
    that of others.
    One as long as the replay shows only against replays that were accepted before, of the same
    engine arguments but for the live limits; the middle one of them counts.

    Args:
        steps: of the replay.
        reference: of accepted replays, in any order.
        capture_limit: the most tokens of a step that runs as a CUDA graph, None if none does.
    """
    within = _spell_within(steps, capture_limit or 0)
    if within is not None and _stands_out(within, steps, reference):
        return within
    drifts = [found for each in reference if (found := drift(each, steps)) is not None]
    factor = float(np.exp(np.median(drifts))) if drifts else 1.0
    if factor < LEAST_FACTOR or steps.period_s.sum() < LEAST_SPELL_S:
        return None
    return Spell(float(steps.begun_s[0]), float(steps.done_s[-1]), factor)


def _stands_out(spell: Spell, steps: Steps, reference: Sequence[Steps]) -> bool:
    """Whether work equal to that of a spell was faster elsewhere.

    By the median of the accepted replays that had such work. Where none had, the contrast with
    the rest of the replay stands, if enough of the rest is of that kind: prices carried on from
    small batches to large ones, say, accuse nobody.
    """
    hit = (steps.done_s > spell.begin_s) & (steps.done_s <= spell.end_s)
    part = steps.select(hit)
    ratios = [found for each in reference if (found := _slower(each, part)) is not None]
    if ratios:
        return float(np.median(ratios)) >= math.log(spell.factor) / 2
    _, rest_s, part_s = _compared(steps.select(~hit), part, least=1)
    shared_s = float(np.minimum(rest_s, part_s).sum())
    return shared_s >= LEAST_SUPPORT * float(part.period_s.sum())


def _slower(previous: Steps, part: Steps) -> float | None:
    """Return as ``drift``, of a part of a replay; None where half of its time has no equal."""
    ratios, _, weights = _compared(previous, part, least=1)
    if weights.sum() < part.period_s.sum() / 2:
        return None
    return weighted_median(ratios, weights)


def drift(previous: Steps, current: Steps) -> float | None:
    """Return the log of how much slower ``current`` was at equal work; negative where faster.

    Steps of one kind within a quarter octave of tokens and an octave of context count as equal
    work. The result is the median over such bins of the ratio of their median times, weighted by
    the lesser of the times that were spent in them. None where bins with 5 steps on both sides
    hold less than a quarter of the time: with another limit of tokens there may be no more.
    """
    ratios, old_s, new_s = _compared(previous, current, least=_LEAST_STEPS)
    weights = np.minimum(old_s, new_s)
    if weights.sum() <= _LEAST_SHARED * min(previous.period_s.sum(), current.period_s.sum()):
        return None
    return weighted_median(ratios, weights)


def _compared(previous: Steps, current: Steps, *, least: int) -> tuple[F8, F8, F8]:
    """Return of each bin of equal work the log ratio of median times, and the times spent in it.

    Of bins that have at least so many steps on both sides.
    """
    before, after = _work_bins(previous), _work_bins(current)
    found = []
    for work in np.intersect1d(before, after):
        old = previous.period_s[before == work]
        new = current.period_s[after == work]
        if min(old.size, new.size) >= least and np.median(old) > 0 < np.median(new):
            found.append((np.log(np.median(new) / np.median(old)), old.sum(), new.sum()))
    ratios, old_s, new_s = np.array(found, dtype=np.float64).reshape(-1, 3).T
    return ratios, old_s, new_s


def _work_bins(steps: Steps) -> I8:
    tokens = np.round(np.log2(np.maximum(steps.tokens, 1)) * _BINS_AN_OCTAVE)
    prefills = steps.prefill_tokens > 0
    context = np.where(
        prefills,
        steps.prefill_pairs / np.maximum(steps.prefill_tokens, 1),
        steps.decode_kv_tokens / np.maximum(steps.decode_requests, 1),
    )
    bins = prefills * 1_000_000 + tokens * 1_000 + np.round(np.log2(1 + context))
    return np.asarray(bins, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Course:
    """A replay in bins of about 0.25 s of work.

    Attributes:
        bins: the bin of each step.
        actual_s: what each bin took.
        work: [bins, columns] what each bin had to do.
    """

    bins: I8
    actual_s: F8
    work: F8

    @classmethod
    def of(cls, steps: Steps, capture_limit: int) -> _Course:
        worked_s = np.cumsum(steps.period_s)
        width_s = max(_BIN_S, float(worked_s[-1]) / _MOST_BINS)
        middle_s = worked_s - steps.period_s / 2
        _, bins = np.unique((middle_s / width_s).astype(np.int64), return_inverse=True)
        work = [sums(bins, column) for column in _work(steps, capture_limit).T]
        return cls(bins, sums(bins, steps.period_s), np.column_stack(work))

    @property
    def prices(self) -> int:
        """How many columns have any work."""
        return int(np.count_nonzero(self.work.any(axis=0)))

    def expected_s(self, among: Bools) -> F8:
        """Return what each bin takes at the pace of those in ``among``."""
        # Bins that are far off, as in a spell, pull no harder than those at 1.5 sigma.
        weights = np.ones(np.count_nonzero(among))
        pace = robust_fit(self.work[among], self.actual_s[among], weights, sigmas=_SIGMAS)
        return np.maximum(self.work @ pace, 1e-9)


def _work(steps: Steps, capture_limit: int) -> F8:
    """Return [steps, columns]: what makes a step take its time, each with a price of its own."""
    prefills = steps.prefill_tokens > 0
    beyond = prefills & (steps.tokens > capture_limit)
    captured = prefills & ~beyond
    return np.column_stack(
        [
            ~prefills,
            captured,
            beyond,
            steps.tokens * captured,
            steps.tokens * beyond,
            steps.decode_requests * ~prefills,
            steps.decode_kv_tokens / 1e3,
            steps.prefill_pairs / 1e6,
        ]
    ).astype(np.float64)


def _spell_within(steps: Steps, capture_limit: int) -> Spell | None:
    if steps.period_s.sum() < 3 * LEAST_SPELL_S:
        return None
    course = _Course.of(steps, capture_limit)
    if course.actual_s.size < _BINS_A_PRICE * course.prices or not np.all(course.actual_s > 0):
        return None
    rest = np.ones(course.actual_s.size, dtype=np.bool_)
    slowest = slice(0)
    expected_s = course.expected_s(rest)
    # What is slow must not have a say in what is usual: fit again without it.
    for _ in range(3):
        found = _slowest(course.actual_s, expected_s)
        if found is None:
            return None
        slowest = found
        rest = np.ones(course.actual_s.size, dtype=np.bool_)
        rest[slowest] = False
        if _factor(course.actual_s, expected_s, rest) < _WORTH_A_REFIT:
            return None
        expected_s = course.expected_s(rest)
    factor = _factor(course.actual_s, expected_s, rest)
    if factor < max(LEAST_FACTOR, np.exp(LEAST_SIGMAS * _sigma(course, expected_s, rest))):
        return None
    members = np.flatnonzero((course.bins >= slowest.start) & (course.bins < slowest.stop))
    last = members[-1]
    begin_s = float(steps.done_s[members[0]] - steps.period_s[members[0]])
    return Spell(begin_s, float(steps.done_s[last]), factor)


def _slowest(actual_s: F8, expected_s: F8) -> slice | None:
    """Return the run of bins, of at least 2 s, that stands out most from all others."""
    actual = np.concatenate([[0], np.cumsum(actual_s)])
    expected = np.concatenate([[0], np.cumsum(expected_s)])
    begin, end = np.triu_indices(actual.size, 1)
    inside_s = actual[end] - actual[begin]
    outside_s = actual[-1] - inside_s
    least_rest_s = max(LEAST_SPELL_S, _LEAST_REST * actual[-1])
    allowed = (inside_s >= LEAST_SPELL_S) & (outside_s >= least_rest_s)
    if not allowed.any():
        return None
    begin, end, inside_s, outside_s = (each[allowed] for each in (begin, end, inside_s, outside_s))
    work = expected[end] - expected[begin]
    excess = np.log(inside_s / work * (expected[-1] - work) / outside_s)
    best = int(np.argmax(excess / np.sqrt(1 / inside_s + 1 / outside_s)))
    return slice(int(begin[best]), int(end[best]))


def _factor(actual_s: F8, expected_s: F8, rest: Bools) -> float:
    usual = actual_s[rest].sum() / expected_s[rest].sum()
    return float(actual_s[~rest].sum() / expected_s[~rest].sum() / usual)


def _sigma(course: _Course, expected_s: F8, rest: Bools) -> float:
    """Return by how much chance moves the log of the factor, from how seconds of the rest vary."""
    second = np.cumsum(rest)[rest] // _SECOND
    actual = np.bincount(second, course.actual_s[rest])
    expected = np.bincount(second, expected_s[rest])
    whole = actual > actual.max() / 2
    variation = float(np.std(np.log(actual[whole] / expected[whole])))
    # Prices that were fitted to few bins follow their noise.
    freedom = 1 - course.prices / np.count_nonzero(rest)
    variation = max(_LEAST_VARIATION, variation) / max(freedom, 1e-3)
    length_s = np.array([course.actual_s[rest].sum(), course.actual_s[~rest].sum()])
    return variation * float(np.sqrt(np.sum(np.mean(actual[whole]) / length_s)))
