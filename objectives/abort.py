"""Proof that a replay which is still running has lost its budget, whatever happens next.

A limit is lost once it lies below the lower bound of what it limits, as ``censoring`` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from objectives.arrays import F8, I8, Bools
from objectives.censoring import Lost, SoFar
from objectives.classes import LengthClass, class_mask
from objectives.errors import ObjectiveError
from objectives.limits import Budget, Limit, check_classes
from objectives.statistics import aggregate, quantile_of

# Interpolation and sums round, by some 1e-16 of the result for each step. Nothing else here does
# more than the measurement itself does, so a bound above the limit by this factor is certain.
_ROUNDING = 1 + 1e-9


class Answer(Protocol):
    """What a client has written down of one request so far; it grows while the replay runs."""

    @property
    def deliveries_s(self) -> Sequence[float]:
        """Seconds from the start of the replay; only ever appended to."""
        ...

    @property
    def tokens(self) -> int: ...

    @property
    def failed(self) -> bool: ...

    @property
    def ended(self) -> bool:
        """Whether nothing changes any more."""
        ...


class AbortWatch:
    """Looks at the answers of a running replay, and says which limit is lost.

    A look costs time for the requests that are unfinished and the deliveries that are new, not
    for those before. A limit is not lost by one failed request as such, but by as many as make
    its value infinite.

    Args:
        budget: limits in ms.
        classes: those that the budget may name.
        answers: one per request.
        scheduled_s: when each request is due; none is answered earlier.
        prompt_tokens: of each request.
        expected_output_tokens: which each answer reaches exactly, unless it fails.

    Raises:
        ObjectiveError: a limit that is relative, or on an unknown class.
    """

    def __init__(
        self,
        budget: Budget,
        classes: Sequence[LengthClass],
        answers: Sequence[Answer],
        *,
        scheduled_s: F8,
        prompt_tokens: I8,
        expected_output_tokens: I8,
    ) -> None:
        check_classes(budget, classes)
        count = len(answers)
        self._masks: dict[str | None, Bools] = {None: np.ones(count, dtype=np.bool_)}
        self._masks |= {each.name: class_mask(prompt_tokens, each) for each in classes}
        self._limits_ms = {limit.key: _in_ms(limit) for limit in budget.limits}
        self._limits = budget.limits
        self._tallies = {
            limit.key: _GapTally(
                limit.aggregate,
                self._limits_ms[limit.key] * _ROUNDING,
                self._masks[limit.class_name],
            )
            for limit in budget.limits
            if limit.metric == "itl"
        }
        self._answers = answers
        self._open = list(range(count))
        self._seen = [0] * count
        self._gap_ms: list[F8] = []
        self._gap_owner: list[I8] = []
        self._so_far = SoFar(
            now_s=0.0,
            scheduled_s=scheduled_s,
            first_s=np.full(count, np.nan),
            last_s=np.full(count, np.nan),
            tokens=np.zeros(count, dtype=np.int64),
            expected=expected_output_tokens,
            failed=np.zeros(count, dtype=np.bool_),
        )

    def lost(self, now_s: float) -> Lost | None:
        """Return the first limit of the budget that is lost by now, None if none is.

        Args:
            now_s: seconds from the start of the replay: not before any stamp so far, not after
                any that is still to come.
        """
        self._read_answers()
        so_far = replace(self._so_far, now_s=now_s)
        for limit in self._limits:
            at_least_ms = self._at_least_ms(limit, so_far.select(self._masks[limit.class_name]))
            limit_ms = self._limits_ms[limit.key]
            if at_least_ms is not None and at_least_ms > limit_ms * _ROUNDING:
                return Lost(limit.key, limit_ms, at_least_ms)
        return None

    def _at_least_ms(self, limit: Limit, part: SoFar) -> float | None:
        """Lower bound of the value; None if there is none, or the tally says it is kept so far."""
        tally = self._tallies.get(limit.key)
        if tally is None:
            return aggregate(part.per_request_ms(limit.metric), limit.aggregate)
        if not tally.is_lost(part):
            return None
        gap_ms, owner = np.concatenate(self._gap_ms), np.concatenate(self._gap_owner)
        inside = self._masks[limit.class_name][owner]
        return aggregate(part.itl_ms(gap_ms[inside]), limit.aggregate)

    def _read_answers(self) -> None:
        """Take in what is new in the answers that were unfinished at the last look."""
        still_open: list[int] = []
        later: list[float] = []
        earlier: list[float] = []
        owner: list[int] = []
        for row in self._open:
            answer = self._answers[row]
            stamps, seen = answer.deliveries_s, self._seen[row]
            if len(stamps) > seen:
                self._take(row, answer)
                if self._tallies:
                    known = max(seen, 1)
                    later += stamps[known:]
                    earlier += stamps[known - 1 : -1]
                    owner += [row] * (len(stamps) - known)
            if answer.ended:
                self._so_far.failed[row] = answer.failed
            else:
                still_open.append(row)
        self._open = still_open
        self._add_gaps(
            (np.array(later) - np.array(earlier)) * 1000, np.array(owner, dtype=np.int64)
        )

    def _take(self, row: int, answer: Answer) -> None:
        self._so_far.first_s[row] = answer.deliveries_s[0]
        self._so_far.last_s[row] = answer.deliveries_s[-1]
        self._so_far.tokens[row] = answer.tokens
        self._seen[row] = len(answer.deliveries_s)

    def _add_gaps(self, gap_ms: F8, owner: I8) -> None:
        if not self._tallies:
            return
        self._gap_ms.append(gap_ms)
        self._gap_owner.append(owner)
        for tally in self._tallies.values():
            tally.add(gap_ms, owner)


@dataclass(slots=True)
class _GapTally:
    """Counts the gaps that are over, for one limit, so that no look has to sort them all."""

    aggregate: str
    certain_ms: float
    mask: Bools
    gaps: int = 0
    above: int = 0
    total_ms: float = 0.0

    def add(self, gap_ms: F8, owner: I8) -> None:
        inside = gap_ms[self.mask[owner]]
        self.gaps += inside.size
        self.above += int((inside > self.certain_ms).sum())
        self.total_ms += float(inside.sum())

    def is_lost(self, part: SoFar) -> bool:
        """Whether the mean, or the lower of the percentile's two order statistics, is above.

        The share that a percentile allows is of all gaps that there can be. Deliveries that
        merge make them fewer, which allows fewer of them to be long.
        """
        open_ms = part.open_gap_ms
        failed = int(part.failed.sum())
        most = self.gaps + open_ms.size + failed + part.gaps_to_come
        if not most:
            return False
        quantile = quantile_of(self.aggregate)
        if quantile is None:
            total_ms = math.inf if failed else self.total_ms + float(open_ms.sum())
            return total_ms / most > self.certain_ms
        above = self.above + int((open_ms > self.certain_ms).sum()) + failed
        return above >= most - math.floor(quantile * (most - 1))


def _in_ms(limit: Limit) -> float:
    if limit.limit_ms is None:
        raise ObjectiveError(
            f"{limit.text} is relative, and proves nothing before it is in ms.",
            hint="resolve the budget first.",
        )
    return limit.limit_ms
