"""Steps that were recorded, and which of them to predict from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from autotune.forecast.fitting import sums
from autotune.forecast.step_fit import joined, padded, time_bins
from objectives.arrays import F8, I8, Bools
from objectives.steps import Steps

FOLDS = 4
LEAST_S = 1e-7
"""What is no time at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The steps of some recordings that took any time, after each other.

    Attributes:
        steps: in order; the clocks of two recordings are not aligned.
        recording: [steps], from which each is, counted from 0.
        actual_s: [steps], what each took. With overlap, from the end of the step before: only
            sums over neighbours are right then.
        ahead_s: [steps], how long each was planned before the one before it was done; 0 without
            overlap.
    """

    steps: Steps
    recording: I8
    actual_s: F8
    ahead_s: F8

    @classmethod
    def of(cls, recordings: Sequence[Steps], *, overlapping: bool) -> Self:
        """Read recordings, of which one at least is needed."""
        timed = [steps for each in recordings if len(steps := _timed(each))]
        timed = timed or [_timed(recordings[0])]
        return cls(
            steps=joined(timed),
            recording=np.repeat(np.arange(len(timed)), [len(each) for each in timed]),
            actual_s=np.concatenate(
                [each.period_s if overlapping else alone_s(each) for each in timed]
            ),
            ahead_s=np.concatenate(
                [ahead_s(each) if overlapping else np.zeros(len(each)) for each in timed]
            ),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def select(self, mask: Bools) -> Self:
        """Return the steps where ``mask`` holds, which take as long as among all."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        steps: Steps = columns.pop("steps")
        return type(self)(
            steps=steps.select(mask), **{name: own[mask] for name, own in columns.items()}
        )

    def bins(self, width_s: float) -> I8:
        """Return the number of the bin of each step: of one recording, and about that wide."""
        found, first = [], 0
        for number in np.unique(self.recording):
            own = time_bins(self.actual_s[self.recording == number], width_s) + first
            first = int(own[-1]) + 1
            found.append(own)
        return np.concatenate(found)

    def errors(self, expected_s: F8, width_s: float) -> F8:
        """Return the log of expected over actual time, for sums over about so much work."""
        bins = self.bins(width_s)
        expected = np.maximum(sums(bins, expected_s), LEAST_S)
        return np.asarray(np.log(expected / np.maximum(sums(bins, self.actual_s), LEAST_S)))

    def time_folds(self) -> I8:
        """Return the fold of each step: whole recordings, in turn, or the quarters of one.

        What is next to each other is in one fold: it was measured at one pace of the machine, and
        with much the same work.
        """
        if self.recording[-1] > 0:
            return np.asarray(self.recording % FOLDS)
        return time_bins(self.actual_s, float(self.actual_s.sum()) / FOLDS)

    def size_folds(self, capture_sizes: Sequence[int]) -> I8:
        """Return the fold of each step, the same for all of one kind and size.

        -1 for the smallest and the largest of a kind, with CUDA graphs and without: there is
        nothing on the other side to predict them from.
        """
        counts = padded(self.steps.tokens, capture_sizes)
        beyond = counts > max(capture_sizes, default=0)
        kinds = 2 * (self.steps.prefill_tokens > 0) + beyond
        folds = np.full(len(self), -1)
        for kind in np.unique(kinds):
            sizes, rank = np.unique(counts[kinds == kind], return_inverse=True)
            outer = (rank == 0) | (rank == sizes.size - 1)
            folds[kinds == kind] = np.where(outer, -1, rank % FOLDS)
        return folds


def alone_s(steps: Steps) -> F8:
    """Return what steps took that ran one at a time, from planning on."""
    return np.asarray(steps.done_s - steps.begun_s)


def ahead_s(steps: Steps) -> F8:
    """Return how long each step of one recording was planned before the one before was done."""
    found = np.zeros(len(steps))
    found[1:] = np.maximum(0.0, steps.done_s[:-1] - steps.begun_s[1:])
    return found


def _timed(steps: Steps) -> Steps:
    return steps.select((steps.tokens > 0) & (alone_s(steps) > LEAST_S))
