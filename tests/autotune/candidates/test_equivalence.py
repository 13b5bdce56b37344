from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.equivalence import Observed, equivalent_cells
from autotune.candidates.lattice import SEQS, TOKENS, Lattice, cell_key

LATTICE = Lattice({TOKENS: (512, 1024), SEQS: (8, 16, 32, 64)})


def key(tokens: int, seqs: int) -> str:
    return cell_key({TOKENS: tokens, SEQS: seqs})


def seen(tokens: int, seqs: int, peak_running: int) -> Observed:
    return Observed({TOKENS: tokens, SEQS: seqs}, peak_running, graphs=False)


def test_caps_above_the_peak_are_represented_by_the_measured_one() -> None:
    found = equivalent_cells(LATTICE, [seen(512, 64, 12)])
    assert found == {key(512, 16): key(512, 64), key(512, 32): key(512, 64)}


def test_a_cap_that_was_reached_says_nothing() -> None:
    assert equivalent_cells(LATTICE, [seen(512, 16, 16)]) == {}


def test_a_cap_at_the_peak_may_have_held_a_request_back() -> None:
    found = equivalent_cells(LATTICE, [seen(512, 64, 16)])
    assert key(512, 16) not in found
    assert key(512, 32) in found


def test_the_first_measurement_stands_for_the_row() -> None:
    found = equivalent_cells(LATTICE, [seen(512, 32, 10), seen(512, 64, 10)])
    assert found[key(512, 16)] == key(512, 32)
    assert found[key(512, 64)] == key(512, 32)


def test_caps_with_other_graphs_are_not_alike() -> None:
    """16 and 32 sequences capture graphs of up to 32 and 64 tokens: another step time."""
    graphs = [Observed({TOKENS: 512, SEQS: 64}, 10, graphs=True)]
    assert equivalent_cells(LATTICE, graphs) == {}
    wide = Lattice({TOKENS: (2048,), SEQS: (128, 256, 512, 1024)})
    found = equivalent_cells(wide, [Observed({TOKENS: 2048, SEQS: 1024}, 10, graphs=True)])
    assert list(found) == [cell_key({TOKENS: 2048, SEQS: cap}) for cap in (256, 512)]


def test_a_log_without_steps_says_nothing_of_the_cap() -> None:
    nothing = Observed({TOKENS: 512, SEQS: 64}, None, graphs=False)
    assert equivalent_cells(LATTICE, [nothing]) == {}


def test_further_knobs_keep_rows_apart() -> None:
    lattice = Lattice({**LATTICE.ladders, "block_size": (16, 32)})
    measured = {TOKENS: 512, SEQS: 64, "block_size": 16}
    found = equivalent_cells(lattice, [Observed(measured, 40, graphs=False)])
    assert found == {}
    found = equivalent_cells(lattice, [Observed(measured, 20, graphs=False)])
    assert list(found) == [cell_key({**measured, SEQS: 32})]


@given(
    st.lists(
        st.builds(
            seen,
            st.sampled_from([512, 1024]),
            st.sampled_from([8, 16, 32, 64]),
            st.integers(0, 64),
        ),
        unique_by=lambda each: cell_key(each.candidate),
    )
)
def test_only_larger_caps_of_the_same_row_are_represented(observed: list[Observed]) -> None:
    measured = {cell_key(each.candidate): each for each in observed}
    for cell, representative in equivalent_cells(LATTICE, observed).items():
        assert cell != representative
        assert json.loads(cell)[TOKENS] == json.loads(representative)[TOKENS]
        assert json.loads(cell)[SEQS] > measured[representative].peak_running
