"""Who is still in question, as the plan of a study asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from autotune.candidates.lattice import Candidate, cell_key
from autotune.study.judgement import Judgement, contested, finalists, rivals
from storage.records import TrialRecord


class Standing(Protocol):
    """What the trials so far say of the candidates."""

    def finalist(self) -> Candidate | None:
        """Return the best that restarts have measured, None if that is the baseline."""
        ...

    def finalists(self) -> Sequence[Candidate]:
        """Return whom restarts may confirm, the best first; never the baseline."""
        ...

    def rivals(self) -> Sequence[Candidate]:
        """Return who else may be the best by what was measured, the likeliest first."""
        ...

    def contested(self) -> Sequence[Candidate]:
        """Return who cannot be told apart yet, the winner so far first; nobody if settled."""
        ...


class Nobody:
    """The standing in a study that is only asked what it would search."""

    def finalist(self) -> Candidate | None:
        return None

    def finalists(self) -> Sequence[Candidate]:
        return ()

    def rivals(self) -> Sequence[Candidate]:
        return ()

    def contested(self) -> Sequence[Candidate]:
        return ()


class Judged:
    """The standing by the verdict, which is made once for each state of the trials.

    Args:
        rows: returns the trials so far.
        judge: says what they mean; trials of equal numbers and states mean the same.
        baseline: the user's own limits.
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[TrialRecord]],
        judge: Callable[[Sequence[TrialRecord]], Judgement | None],
        baseline: Candidate,
    ) -> None:
        self._rows = rows
        self._judge = judge
        self._baseline = baseline
        self._known: tuple[tuple[tuple[int, str], ...], Judgement | None] | None = None

    def judgement(self) -> Judgement | None:
        """Return what the trials so far say, None before the first result."""
        rows = self._rows()
        state = tuple((row.number, row.state) for row in rows)
        if self._known is None or self._known[0] != state:
            self._known = state, self._judge(rows)
        return self._known[1]

    def finalist(self) -> Candidate | None:
        judgement = self.judgement()
        if judgement is None or judgement.knee is None:
            return None
        candidate = judgement.cells[judgement.knee.cell].candidate
        return None if cell_key(candidate) == cell_key(self._baseline) else candidate

    def finalists(self) -> Sequence[Candidate]:
        judgement = self.judgement()
        return () if judgement is None else finalists(judgement)

    def rivals(self) -> Sequence[Candidate]:
        judgement = self.judgement()
        return () if judgement is None else rivals(judgement)

    def contested(self) -> Sequence[Candidate]:
        judgement = self.judgement()
        return () if judgement is None else contested(judgement)
