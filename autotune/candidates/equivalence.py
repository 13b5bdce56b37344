"""Cells that cannot differ: sequence caps that the traffic never reaches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.candidates.lattice import SEQS, Candidate, Lattice, cell_key, integer

CAPTURE_CEILING = 512
"""vLLM captures CUDA graphs for up to twice ``max_num_seqs`` tokens, and for no more than this."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured cell.

    Attributes:
        candidate: what was measured.
        peak_running: the most requests that ever ran at once; None if nothing was recorded.
        graphs: whether engines for this and other caps have CUDA graphs of sizes that follow from
            the cap; not so where one engine runs them all.
    """

    candidate: Candidate
    peak_running: int | None
    graphs: bool


def equivalent_cells(lattice: Lattice, observed: Iterable[Observed]) -> dict[str, str]:
    """Return cell key -> key of the measured cell that represents it.

    Where a cap was never reached, every cap above the peak admits the same requests at the same
    steps, so that whichever of the row was measured first stands for all of them. With CUDA
    graphs the cap also decides how large a step is still captured, so that only caps with the
    same largest graph are alike.
    """
    represented: dict[str, str] = {}
    caps = [integer(cap) for cap in lattice.ladders[SEQS]]
    for measured in observed:
        own_cap, peak = integer(measured.candidate[SEQS]), measured.peak_running
        if peak is None or peak >= own_cap:
            continue
        own = cell_key(measured.candidate)
        for cap in caps:
            if cap <= peak or (measured.graphs and largest_graph(cap) != largest_graph(own_cap)):
                continue
            key = cell_key({**measured.candidate, SEQS: cap})
            if key != own:
                represented.setdefault(key, own)
    return represented


def largest_graph(cap: int) -> int:
    """Return the tokens of the largest step that runs as a CUDA graph, by vLLM's default."""
    return min(2 * cap, CAPTURE_CEILING)
