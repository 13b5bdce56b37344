"""A standing as a test has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.candidates.lattice import Candidate


@dataclass(slots=True)
class Told:
    """Who is in question, whatever the trials are."""

    best: Candidate | None = None
    able: Sequence[Candidate] = ()
    others: Sequence[Candidate] = ()
    close: Sequence[Candidate] = ()

    def finalist(self) -> Candidate | None:
        return self.best

    def finalists(self) -> Sequence[Candidate]:
        return self.able

    def rivals(self) -> Sequence[Candidate]:
        return self.others

    def contested(self) -> Sequence[Candidate]:
        return self.close
