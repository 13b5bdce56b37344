from __future__ import annotations

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS, Lattice, cell_key
from autotune.candidates.starts import starting_points

LATTICE = Lattice(
    {TOKENS: (128, 256, 512, 1024, 2048, 4096, 8192), SEQS: (8, 16, 32, 64, 128, 256)}
)
BASELINE = {TOKENS: 8192, SEQS: 256}
CHATS = np.full(100, 300)
MIXED = np.concatenate([np.full(90, 300), np.full(10, 6000)])
DOCUMENTS = np.full(100, 6000)


def limits(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]],
    baseline: dict[str, int | float | str | bool] | None = None,
) -> list[tuple[object, object]]:
    starts = starting_points(LATTICE, lengths, baseline or {**BASELINE}, lambda _: True)
    return [(start.candidate[TOKENS], start.candidate[SEQS]) for start in starts]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (CHATS, [(2048, 256), (512, 256)]),
        (MIXED, [(2048, 256), (4096, 256), (512, 256)]),
        (DOCUMENTS, [(2048, 256), (4096, 256), (512, 256)]),
    ],
    ids=["chats", "mixed", "documents"],
)
def test_rules_fit_the_traffic(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]], expected: list[tuple[int, int]]
) -> None:
    assert limits(lengths) == expected


def test_caps_come_from_the_common_range() -> None:
    assert limits(CHATS, {TOKENS: 8192, SEQS: 8}) == [(512, 64), (128, 64)]
    assert limits(CHATS, {TOKENS: 8192, SEQS: 1024}) == [(4096, 256), (1024, 256)]


def test_a_rule_that_the_user_follows_already_is_no_start() -> None:
    own = cell_key({TOKENS: 2048, SEQS: 256})
    starts = starting_points(LATTICE, CHATS, BASELINE, lambda cell: cell_key(cell) != own)
    assert [start.rule for start in starts] == ["doubling starts at 2 × max_num_seqs"]


def test_two_rules_with_one_cell_are_one_start() -> None:
    narrow = Lattice({TOKENS: (1024,), SEQS: (256,)})
    assert len(starting_points(narrow, MIXED, BASELINE, lambda _: True)) == 1


def test_a_lattice_without_cells_has_no_start() -> None:
    assert starting_points(Lattice({TOKENS: (8,), SEQS: (16,)}), MIXED, BASELINE, bool) == []
