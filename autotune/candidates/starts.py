"""Where practitioners start, as candidates: the field's rules of thumb, each with its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.candidates.lattice import (
    SEQS,
    TOKENS,
    Candidate,
    Lattice,
    Value,
    cell_key,
    integer,
)

CHAT_PROMPT_TOKENS = 1000
"""A median prompt below this is a short chat."""

DOCUMENT_PROMPT_TOKENS = 2000
"""A 95th percentile prompt above this means that documents are among the traffic."""

COMMON_SEQS = (64, 512)
"""The range in which people fix ``max_num_seqs`` first."""


@dataclass(frozen=True, slots=True)
class Start:
    """A starting point and the rule that it stands for."""

    rule: str
    candidate: dict[str, Value]


def starting_points(
    lattice: Lattice,
    input_lengths: NDArray[np.int64],
    baseline: Candidate,
    allowed: Callable[[Candidate], bool],
) -> list[Start]:
    """Return the rules that fit the traffic, on the lattice, without repeats.

    A rule whose nearest cell is not allowed, such as the baseline's, has been followed already.

    Sources: practitioners' accounts. For short chats a step budget of 8 times the sequence cap;
    for long documents 2048 to 4096; in any case twice the sequence cap, from where people double.
    """
    seqs = int(np.clip(integer(baseline[SEQS]), *COMMON_SEQS))
    rules: list[tuple[str, int]] = []
    if np.percentile(input_lengths, 95) > DOCUMENT_PROMPT_TOKENS:
        rules += [("documents: budget 2048", 2048), ("documents: budget 4096", 4096)]
    if np.median(input_lengths) < CHAT_PROMPT_TOKENS:
        rules.append(("chats: budget 8 × max_num_seqs", 8 * seqs))
    rules.append(("doubling starts at 2 × max_num_seqs", 2 * seqs))
    starts: list[Start] = []
    taken: set[str] = set()
    for rule, tokens in rules:
        wanted = {**baseline, TOKENS: tokens, SEQS: seqs}
        cell = lattice.nearest(wanted, lambda _: True)
        if cell is not None and allowed(cell) and cell_key(cell) not in taken:
            taken.add(cell_key(cell))
            starts.append(Start(rule, cell))
    return starts
