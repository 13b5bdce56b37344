"""Whom to measure by a restart at the end of a study with live trials, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.candidates.lattice import Candidate, cell_key
from storage.records import TrialRecord

ATTEMPTS = 2
"""What failed without blame or was invalid is tried once more; an interruption is no try."""

FINISHED = ("complete", "infeasible")
MISSED = ("failed", "invalid")
_SEARCHED = ("screen", "starts", "search")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Restarts of the finalists and the baseline in turn: A, baseline, B, A, baseline, B.

    In turn, so that a machine that changes meanwhile treats them alike. Who has begun a round
    stays in it, however it turns out, unless a restart shows that it cannot run: then the next
    best takes its place. So it does when all of the round have had their restarts and none of
    them is a finalist any more, as they miss the budget: else nobody could win. A study that
    goes on with more trials has further rounds, for finalists that no restart has confirmed yet.
    A round that follows another with no other trial between goes without the baseline, which
    has just been measured.

    Attributes:
        baseline: measured as often as each finalist.
        finalists: the others, the best first, by all that was measured so far.
        most: how many of them at most.
        repeats: restarts of each.
    """

    baseline: Candidate
    finalists: Callable[[], Sequence[Candidate]]
    most: int
    repeats: int

    def next_candidate(self, rows: Sequence[TrialRecord]) -> Candidate | None:
        """Return whom to restart next, None if nobody is left to confirm."""
        confirms = [row for row in rows if row.phase == "confirm"]
        current, alone = self._round(rows)
        due = None
        if not self._complete(current, alone=alone):
            due = self._due(current, self._members(current, confirms), alone=alone)
        follows = bool(confirms) and rows[-1] is confirms[-1]
        return due or self._due([], self._members([], confirms), alone=follows)

    def _round(self, rows: Sequence[TrialRecord]) -> tuple[list[TrialRecord], bool]:
        """Return the trials of the latest round, and whether it goes without the baseline."""
        current: list[TrialRecord] = []
        alone, between = False, False
        for row in rows:
            if row.phase != "confirm":
                between = True
                continue
            if not trials_of(current, row.candidate) and self._complete(current, alone=alone):
                current, alone = [], not between
            current.append(row)
            between = False
        return current, alone

    def _complete(self, current: Sequence[TrialRecord], *, alone: bool) -> bool:
        """Whether each of the round has all that it will get, the baseline among them."""
        everybody = [*_candidates(current), *([] if alone else [self.baseline])]
        return all(self._settled(trials_of(current, each)) for each in everybody)

    def _members(
        self, current: Sequence[TrialRecord], confirms: Sequence[TrialRecord]
    ) -> list[Candidate]:
        """Return the finalists of a round, filled up by the best who are not confirmed yet."""
        own = [each for each in _candidates(current) if not self._is_baseline(each)]
        members = [each for each in own if not given_up(trials_of(current, each))]
        done = all(self._settled(trials_of(current, each)) for each in members)
        if len(members) >= self.most and not done:
            return members
        finalists = self.finalists()
        if done and not set(map(cell_key, members)) & set(map(cell_key, finalists)):
            members = []
        if len(members) >= self.most:
            return members
        able = [c for c in finalists if not given_up(trials_of(confirms, c))]
        known = set(map(cell_key, own))
        new = [
            each
            for each in able[: self.most]
            if cell_key(each) not in known and not self._settled(trials_of(confirms, each))
        ]
        return [*members, *new][: self.most]

    def _due(
        self, current: Sequence[TrialRecord], members: Sequence[Candidate], *, alone: bool
    ) -> Candidate | None:
        """Return who has the fewest results of the round; of several the first in turn."""
        base = [] if alone else [self.baseline]
        in_turn = [*members[:1], *base, *members[1:]] if members else []
        trials = [trials_of(current, each) for each in in_turn]
        due = [
            (sum(row.state in FINISHED for row in own), turn)
            for turn, own in enumerate(trials)
            if not self._settled(own)
        ]
        return in_turn[min(due)[1]] if due else None

    def _settled(self, own: Sequence[TrialRecord]) -> bool:
        return sum(row.state in FINISHED for row in own) >= self.repeats or given_up(own)

    def _is_baseline(self, candidate: Candidate) -> bool:
        return cell_key(candidate) == cell_key(self.baseline)


def searches(phase: str) -> bool:
    """Whether trials of a phase are to find something."""
    return phase in _SEARCHED


def confirmed(rows: Sequence[TrialRecord]) -> int:
    """Return how many restarts have confirmed what the search has found so far."""
    count = 0
    for row in rows:
        if searches(row.phase) and row.replicate_of is None:
            # What was confirmed before it says nothing of what it has found.
            count = 0
        elif row.phase == "confirm" and row.state in FINISHED:
            count += 1
    return count


def trials_of(rows: Sequence[TrialRecord], candidate: Candidate) -> list[TrialRecord]:
    """Return the trials of one candidate."""
    key = cell_key(candidate)
    return [row for row in rows if cell_key(row.candidate) == key]


def given_up(own: Sequence[TrialRecord]) -> bool:
    """Whether trials of one candidate show that another would bring nothing."""
    if any(row.state == "infeasible" for row in own):
        return True
    missed = 0
    for row in own:
        missed = 0 if row.state in FINISHED else missed + (row.state in MISSED)
    return missed >= ATTEMPTS


def _candidates(rows: Sequence[TrialRecord]) -> list[Candidate]:
    """Return whom trials are of, each once, in the order of the first ones."""
    return list({cell_key(row.candidate): row.candidate for row in rows}.values())
