"""Cells that cannot differ: sequence caps that the traffic never reaches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.candidates.lattice import SEQS, Candidate, Lattice, cell_key


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured cell and the most requests that ever ran at once in it."""

    candidate: Candidate
    peak_running: int


def equivalent_cells(lattice: Lattice, observed: Iterable[Observed]) -> dict[str, str]:
    """Return cell key -> key of the measured cell that represents it.

    Where a cap was never reached, every cap above the peak admits the same requests at the same
    steps, so that whichever of the row was measured first stands for all of them.
    """
    represented: dict[str, str] = {}
    caps = [int(cap) for cap in lattice.ladders[SEQS]]
    for measured in observed:
        if measured.peak_running >= int(measured.candidate[SEQS]):
            continue
        own = cell_key(measured.candidate)
        for cap in caps:
            key = cell_key({**measured.candidate, SEQS: cap})
            if cap > measured.peak_running and key != own:
                represented.setdefault(key, own)
    return represented
