"""What a study does next, from its stored trials alone, so that a resumed one goes on the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.candidates.equivalence import Observed, equivalent_cells
from autotune.candidates.lattice import Candidate, Lattice, cell_key
from autotune.candidates.starts import Start
from storage.records import TrialRecord

CONFIRM_FROM = 6
"""Studies of at least so many trials keep the last ones to measure winner and baseline again."""

CONFIRM_TRIALS = 2

STARTS_SHARE = 3
"""At most one trial in so many is spent on rules of thumb."""

ATTEMPTS = 2
"""What failed without blame or was invalid is tried once more; an interruption is no try."""

_FINISHED = ("complete", "infeasible")
_WITHOUT_RESULT = ("failed", "invalid", "interrupted")


@dataclass(frozen=True, slots=True)
class Step:
    """The next trial; ``candidate`` None lets the sampler choose."""

    phase: str
    candidate: Candidate | None
    replicate_of: int | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Baseline, rules of thumb, search, confirmation: within a number of trials in all.

    Args:
        trials: finished trials of any phase at the end.
        baseline: the user's own limits.
        starts: rules of thumb, in order.
        lattice: the frozen ladders.
        finalist: the best cell so far, other than the baseline, for confirmation.
    """

    trials: int
    baseline: Candidate
    starts: Sequence[Start]
    lattice: Lattice
    finalist: Callable[[], Candidate | None]

    def next_step(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Return what to measure next, None when the study is complete."""
        left = self.trials - finished_trials(rows)
        if left <= 0:
            return None
        if (again := retry(rows)) is not None:
            return again
        if not measured(rows, self.baseline):
            return Step("baseline", self.baseline)
        reserve = CONFIRM_TRIALS if self.trials >= CONFIRM_FROM else 0
        if left > reserve:
            return self._start(rows) or self._search(rows) or self._confirm(rows)
        return self._confirm(rows) or self._search(rows)

    def untested(self, rows: Sequence[TrialRecord]) -> Callable[[Candidate], bool]:
        """Return whether a cell may be tried: never tried, and not equal to one that was."""
        closed = {cell_key(row.candidate) for row in rows} | set(
            equivalent_cells(self.lattice, observed(rows))
        )
        return lambda candidate: cell_key(candidate) not in closed

    def _start(self, rows: Sequence[TrialRecord]) -> Step | None:
        allowed = self.untested(rows)
        begun = sum(row.phase == "starts" and row.replicate_of is None for row in rows)
        if begun >= self.trials // STARTS_SHARE:
            return None
        for start in self.starts:
            if allowed(start.candidate):
                return Step("starts", start.candidate, rule=start.rule)
        return None

    def _search(self, rows: Sequence[TrialRecord]) -> Step | None:
        allowed = self.untested(rows)
        return Step("search", None) if any(map(allowed, self.lattice.cells())) else None

    def _confirm(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Measure the baseline again, then whoever is best by then, once each."""
        confirmed = {cell_key(row.candidate) for row in rows if row.phase == "confirm"}
        if cell_key(self.baseline) not in confirmed:
            return self._again(rows, self.baseline)
        finalist = self.finalist()
        if finalist is None or cell_key(finalist) in confirmed:
            return None
        return self._again(rows, finalist)

    def _again(self, rows: Sequence[TrialRecord], candidate: Candidate) -> Step:
        return Step("confirm", candidate, replicate_of=first_trial(rows, candidate))


def finished_trials(rows: Sequence[TrialRecord]) -> int:
    """Return how many trials count towards the total: those with a result."""
    return sum(row.state in _FINISHED for row in rows)


def measured(rows: Sequence[TrialRecord], candidate: Candidate) -> bool:
    key = cell_key(candidate)
    return any(row.state == "complete" and cell_key(row.candidate) == key for row in rows)


def first_trial(rows: Sequence[TrialRecord], candidate: Candidate) -> int | None:
    key = cell_key(candidate)
    return next((row.number for row in rows if cell_key(row.candidate) == key), None)


def retry(rows: Sequence[TrialRecord]) -> Step | None:
    """Return a trial that is due again: without a result through no fault of its candidate.

    The first such one of the study. It need not be the last: a stricter budget can make a
    replay that counted an invalid one.
    """
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for row in rows:
        groups.setdefault((row.phase, cell_key(row.candidate)), []).append(row)
    for group in groups.values():
        last = group[-1]
        attempts = sum(row.state != "interrupted" for row in group)
        if all(row.state in _WITHOUT_RESULT for row in group) and attempts < ATTEMPTS:
            first = last.number if last.replicate_of is None else last.replicate_of
            return Step(last.phase, last.candidate, replicate_of=first)
    return None


def failures_in_a_row(rows: Sequence[TrialRecord]) -> tuple[str | None, int]:
    """Return the class of the latest failures and how many of it came in a row."""
    latest = rows[-1].failure_class if rows else None
    count = 0
    for row in reversed(rows):
        if latest is None or row.failure_class != latest:
            break
        count += 1
    return latest, count


def observed(rows: Sequence[TrialRecord]) -> list[Observed]:
    """Return the measured cells with the most requests that ran at once in them."""
    return [
        Observed(
            row.candidate,
            int(row.engine["load"]["peak_running"]) if row.engine["load"]["steps"] else None,
            graphs=bool(row.engine["capture_sizes"]),
        )
        for row in rows
        if row.state == "complete" and row.engine is not None
    ]
