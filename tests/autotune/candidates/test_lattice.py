from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import (
    MAX_CELLS,
    MAX_SEQ_STEPS,
    MAX_TOKEN_STEPS,
    SEQS,
    TOKENS,
    Lattice,
    Tiles,
    Value,
    build_lattice,
    cell_key,
    check_size,
    half_octaves,
    integer,
    is_consistent,
    next_power_of_two,
    plain_values,
    thin,
    value_of,
)
from autotune.errors import UsageError

SMALL = Lattice({TOKENS: (128, 256, 384, 512), SEQS: (8, 16, 128, 512)})


def built(
    *,
    tiles: Tiles | None = None,
    tokens: int = 2048,
    seqs: int = 64,
    own: tuple[int, int] | None = None,
    longest_prompt: int = 1000,
    peak_concurrency: int = 0,
    knobs: dict[str, list[Value]] | None = None,
    more_baseline: dict[str, Value] | None = None,
) -> Lattice:
    own_tokens, own_seqs = own or (tokens, seqs)
    return build_lattice(
        tiles=tiles or Tiles(),
        default_tokens=tokens,
        default_seqs=seqs,
        longest_prompt=longest_prompt,
        peak_concurrency=peak_concurrency,
        baseline={TOKENS: own_tokens, SEQS: own_seqs, **(more_baseline or {})},
        knobs=knobs,
    )


lattices = st.builds(
    built,
    tiles=st.builds(Tiles, st.integers(1, 256), st.integers(1, 16)),
    tokens=st.integers(256, 16384),
    seqs=st.integers(16, 1024),
    own=st.none() | st.tuples(st.integers(1, 20000), st.integers(1, 2000)),
    longest_prompt=st.integers(1, 131072),
    peak_concurrency=st.integers(0, 600),
)
plain_scalars = st.integers(-5, 600) | st.sampled_from(["a", "b"])
listed = st.lists(
    plain_scalars | st.lists(plain_scalars, min_size=1, max_size=4).map(tuple),
    min_size=1,
    max_size=5,
    unique=True,
)


@pytest.mark.parametrize(
    ("text", "tiles"),
    [("128,8", Tiles(128, 8)), (" 64 , 4 ", Tiles(64, 4)), ("256", Tiles(256, 8))],
)
def test_tiles_are_read(text: str, tiles: Tiles) -> None:
    assert Tiles.parse(text) == tiles


@pytest.mark.parametrize(
    "text", ["", "0", "128,0", "1,2,3", "a", "12.5", "-8", "²", "٣", "9" * 5000, "0" * 5000 + "1"]
)
def test_tiles_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Tiles.parse(text)
    assert "--tile" in caught.value.message
    assert "--tile 128,8" in caught.value.hint


def test_the_ladders_of_a_small_server() -> None:
    lattice = built()
    assert lattice.ladders[TOKENS] == (128, 256, 384, 512, 768, 1024, 1536, 2048)
    assert lattice.ladders[SEQS] == (8, 16, 24, 32, 48, 64)
    assert lattice.off_tile == {}


def test_ladders_reach_the_longest_prompt_and_twice_the_concurrency() -> None:
    lattice = built(longest_prompt=5000, peak_concurrency=70)
    assert lattice.ladders[TOKENS][-1] == 8192
    assert lattice.ladders[SEQS][-1] == 128


def test_step_budgets_start_at_twice_the_smallest_cap() -> None:
    assert built(tiles=Tiles(16, 32)).ladders[TOKENS][0] == 64


def test_a_baseline_off_the_tile_joins_and_is_marked() -> None:
    lattice = built(own=(1000, 50))
    assert 1000 in lattice.ladders[TOKENS]
    assert 50 in lattice.ladders[SEQS]
    assert lattice.off_tile == {TOKENS: (1000,), SEQS: (50,)}


def test_a_tile_beyond_the_ladder_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        built(tiles=Tiles(4096, 8), longest_prompt=100)
    assert TOKENS in caught.value.message
    assert caught.value.hint == "choose a smaller --tile, such as --tile 128,8"


@pytest.mark.parametrize(
    ("tiles", "tokens", "seqs", "works"),
    [
        (Tiles(), 2048, 1, "128,1"),
        (Tiles(64, 16), 2048, 4, "64,1"),
        (Tiles(512, 8), 64, 16, "1,1"),
        (Tiles(4096, 4), 2048, 64, "128,4"),
    ],
)
def test_the_tile_of_the_hint_works(tiles: Tiles, tokens: int, seqs: int, works: str) -> None:
    with pytest.raises(UsageError) as caught:
        built(tiles=tiles, tokens=tokens, seqs=seqs, longest_prompt=60)
    assert caught.value.hint == f"choose a smaller --tile, such as --tile {works}"
    lattice = built(tiles=Tiles.parse(works), tokens=tokens, seqs=seqs, longest_prompt=60)
    assert lattice.ladders[SEQS][-1] == seqs


def test_limits_for_which_there_is_no_tile() -> None:
    with pytest.raises(UsageError) as caught:
        built(tokens=1, seqs=1, longest_prompt=1)
    assert caught.value.hint == "raise the limits: no --tile has a value up to them"


def test_knobs_get_ladders_with_the_baseline_numbers_ascending() -> None:
    lattice = built(
        knobs={"block_size": [16, 32], "async_scheduling": [True], SEQS: [16, 96]},
        more_baseline={"block_size": 16, "async_scheduling": False},
    )
    assert lattice.ladders["block_size"] == (16, 32)
    assert lattice.ladders["async_scheduling"] == (False, True)
    assert lattice.ladders[SEQS] == (16, 64, 96)
    assert SEQS not in lattice.off_tile


@given(lattices)
def test_every_lattice_is_small_aligned_and_ascending(lattice: Lattice) -> None:
    tokens, seqs = lattice.ladders[TOKENS], lattice.ladders[SEQS]
    assert len(tokens) <= MAX_TOKEN_STEPS
    assert len(seqs) <= MAX_SEQ_STEPS
    assert all(list(ladder) == sorted(set(ladder)) for ladder in (tokens, seqs))
    assert all(len(values) <= 1 for values in lattice.off_tile.values())


@given(st.integers(1, 256), st.integers(1, 16), st.integers(256, 16384), st.integers(16, 1024))
def test_values_are_multiples_of_the_tile_and_the_baseline_stays(
    tile: int, seq_tile: int, own_tokens: int, own_seqs: int
) -> None:
    lattice = built(tiles=Tiles(tile, seq_tile), own=(own_tokens, own_seqs))
    for name, quantum, own in ((TOKENS, tile, own_tokens), (SEQS, seq_tile, own_seqs)):
        ladder = lattice.ladders[name]
        assert own in ladder
        assert all(integer(value) % quantum == 0 for value in ladder if value != own)
        assert lattice.off_tile.get(name, ()) == ((own,) if own % quantum else ())


@given(lattices)
def test_every_cell_has_room_for_its_sequences(lattice: Lattice) -> None:
    cells = lattice.cells()
    assert all(integer(cell[TOKENS]) >= integer(cell[SEQS]) for cell in cells)
    assert len({cell_key(cell) for cell in cells}) == len(cells)
    assert all(lattice.at(lattice.indices(cell)) == cell for cell in cells)


@given(lattices)
def test_json_keeps_a_lattice(lattice: Lattice) -> None:
    assert Lattice.from_json(json.loads(json.dumps(lattice.to_json()))) == lattice


@given(lattices, st.integers(1, 40000), st.integers(1, 4000))
def test_nearest_is_allowed_and_deterministic(lattice: Lattice, tokens: int, seqs: int) -> None:
    wanted = {TOKENS: tokens, SEQS: seqs}
    found = lattice.nearest(wanted, lambda cell: integer(cell[SEQS]) > 8)
    assert found == lattice.nearest(wanted, lambda cell: integer(cell[SEQS]) > 8)
    assert found is None or found in lattice.cells()


@given(lattices, st.data())
def test_an_allowed_cell_is_nearest_to_itself(lattice: Lattice, data: st.DataObject) -> None:
    cells = lattice.cells()
    if cells:
        cell = data.draw(st.sampled_from(cells))
        assert lattice.nearest(cell, lambda _: True) == cell


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ((1, 1), (128, 8)),
        ((9999, 9999), (512, 512)),
        ((181, 8), (128, 8)),  # Half way is at 181.02, on a logarithmic scale.
        ((182, 8), (256, 8)),
        ((128, 512), (128, 128)),  # Two steps either way: the smaller budget wins.
    ],
)
def test_nearest_counts_steps(wanted: tuple[int, int], found: tuple[int, int]) -> None:
    cell = SMALL.nearest({TOKENS: wanted[0], SEQS: wanted[1]}, lambda _: True)
    assert cell == {TOKENS: found[0], SEQS: found[1]}


def test_nearest_of_names_and_of_nothing() -> None:
    lattice = Lattice({"policy": ("fcfs", "priority")})
    assert lattice.nearest({"policy": "priority"}, lambda _: True) == {"policy": "priority"}
    assert lattice.nearest({"policy": "other"}, lambda _: True) == {"policy": "fcfs"}
    assert lattice.nearest({"policy": "fcfs"}, lambda _: False) is None


@given(listed, st.data())
def test_json_keeps_candidates_with_lists(values: list[Value], data: st.DataObject) -> None:
    lattice = built(knobs={"sizes": values}, more_baseline={"sizes": values[-1]})
    restored = Lattice.from_json(json.loads(json.dumps(lattice.to_json())))
    assert restored == lattice
    cell = data.draw(st.sampled_from(lattice.cells()))
    stored = json.loads(json.dumps(cell))
    assert cell_key(stored) == cell_key(cell)
    assert restored.at(restored.indices(stored)) == cell
    assert restored.nearest(stored, lambda _: True) == cell
    assert plain_values(cell) == stored
    assert {name: value_of(value) for name, value in stored.items()} == cell
    assert hash(tuple(cell.values())) is not None


def test_lists_keep_the_order_in_which_they_were_written() -> None:
    lattice = built(knobs={"sizes": [(1, 8), (1, 2, 4)]}, more_baseline={"sizes": (1, 2)})
    assert lattice.ladders["sizes"] == ((1, 2), (1, 8), (1, 2, 4))
    assert lattice.nearest({**SMALL.at({TOKENS: 3, SEQS: 1}), "sizes": (9,)}, lambda _: True) == {
        TOKENS: 512, SEQS: 16, "sizes": (1, 2),
    }  # fmt: skip


def test_of_a_list_there_is_no_whole_number() -> None:
    assert integer(8) == 8
    with pytest.raises(TypeError, match="is no number"):
        integer((8,))


def test_a_value_off_the_ladder_has_no_index() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        SMALL.indices({TOKENS: 129, SEQS: 8})


def test_more_cells_than_can_be_looked_at_are_refused() -> None:
    check_size([])
    check_size([MAX_CELLS])
    check_size([1000, 0, 1000])
    with pytest.raises(
        UsageError, match=r"make 1\.296e\+07 candidates, more than 100000"
    ) as caught:
        check_size([60] * 4)
    assert "fewer values" in caught.value.hint
    with pytest.raises(UsageError, match="more than 100000"):
        built(knobs={"a": list(range(100)), "b": list(range(100))})


def test_equal_candidates_share_a_key() -> None:
    assert cell_key({TOKENS: 1, SEQS: 2}) == cell_key({SEQS: 2, TOKENS: 1})
    assert cell_key({"x": 1}) != cell_key({"x": True})


def test_consistency_needs_both_limits() -> None:
    assert is_consistent({TOKENS: 8, SEQS: 8})
    assert not is_consistent({TOKENS: 8, SEQS: 9})
    assert is_consistent({SEQS: 9})


def test_half_octaves_leave_out_one_and_a_half_tiles() -> None:
    assert half_octaves(128, 128, 1000) == [128, 256, 384, 512, 768]
    assert half_octaves(7, 14, 60) == [14, 21, 28, 42, 56]
    assert half_octaves(128, 128, 127) == []


@given(st.integers(1, 10**6))
def test_the_next_power_of_two(value: int) -> None:
    power = next_power_of_two(value)
    assert power.bit_count() == 1
    assert power // 2 < value <= power


@given(
    st.lists(st.integers(1, 10**5), min_size=1, unique=True).map(sorted), st.integers(3, 12),
    st.data(),
)  # fmt: skip
def test_thinning_keeps_the_ends_and_what_it_must(
    values: list[int], limit: int, data: st.DataObject
) -> None:
    own = data.draw(st.sampled_from(values))
    thinned = thin(values, limit, keep=[own])
    assert {values[0], values[-1], own} <= set(thinned) <= set(values)
    assert len(thinned) == min(limit, len(values))


def test_thinning_spares_powers_of_two() -> None:
    values = [128, 256, 384, 512, 768, 1024]
    assert thin(values, 4, keep=[]) == (128, 256, 512, 1024)
