from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import half_octaves
from autotune.forecast.calibration import Calibration, Point
from autotune.forecast.edges import Edge
from autotune.forecast.ladder import sequence_caps, worthwhile_budgets
from tests.autotune.forecast.builders import CAPTURE_SIZES, FakeEngine, plan


def known(
    times_ms: dict[int, float], *edges: int, capture_sizes: tuple[int, ...] = ()
) -> Calibration:
    return Calibration(
        points=tuple(Point(size, ms, 0.0, 5) for size, ms in sorted(times_ms.items())),
        batches=(),
        edges=tuple(Edge(size, size + 1, 1.0, 0.1, "tile") for size in edges),
        quantum=None,
        capture_sizes=capture_sizes,
        kv_token_ns=None,
        pair_ns=None,
        best_flops_per_s=None,
    )


def test_without_edges_the_ladder_is_the_plain_one() -> None:
    assert worthwhile_budgets(known({}), tile=128, low=128, top=2048) == tuple(
        half_octaves(128, 128, 2048)
    )


def test_a_rung_moves_to_the_edge_that_is_cheaper_for_each_token() -> None:
    times_ms = {1024: 40.0, 1152: 38.0, 1280: 60.0}
    ladder = worthwhile_budgets(known(times_ms, 1152, 1280), tile=128, low=512, top=2048)
    assert ladder == (512, 768, 1152, 1280, 2048)


def test_a_rung_stays_where_the_edge_gains_too_little_or_the_rung_is_one_itself() -> None:
    little = known({1024: 40.0, 1152: 44.9}, 1152)
    own = known({1024: 40.0, 1152: 38.0}, 1024, 1152)
    for calibration in (little, own):
        assert 1024 in worthwhile_budgets(calibration, tile=128, low=512, top=2048)


def test_edges_off_the_tile_do_not_count() -> None:
    off = known({1024: 40.0, 1152: 20.0}, 1152)
    assert 1152 not in worthwhile_budgets(off, tile=512, low=512, top=2048)


def test_capture_limit_and_top_are_on_it_however_few_there_may_be() -> None:
    graphs = known({}, capture_sizes=(8, 640))
    ladder = worthwhile_budgets(graphs, tile=128, low=128, top=9000, most=5)
    assert len(ladder) == 5
    assert {640, 9000} <= set(ladder)
    assert 640 not in worthwhile_budgets(graphs, tile=512, low=512, top=8192)


def test_the_ladder_of_a_measured_engine() -> None:
    sweep = FakeEngine().sweep(plan())
    calibration = Calibration.measured(sweep, plan=plan(), capture_sizes=CAPTURE_SIZES)
    ladder = worthwhile_budgets(calibration, tile=128, low=128, top=16384)
    assert ladder == (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)


@given(
    tile=st.integers(1, 512),
    low=st.integers(1, 2000),
    span=st.integers(0, 20_000),
    edges=st.lists(st.integers(1, 20_000), max_size=10, unique=True),
)
def test_a_ladder_is_in_range_and_on_the_tile(
    tile: int, low: int, span: int, edges: list[int]
) -> None:
    top = low + span
    times_ms = {size: 1 + size / 100 for size in edges}
    ladder = worthwhile_budgets(known(times_ms, *edges), tile=tile, low=low, top=top)
    assert ladder[-1] == top
    assert len(ladder) <= 12
    assert list(ladder) == sorted(set(ladder))
    assert all(low <= value and (value == top or value % tile == 0) for value in ladder)


def test_caps_sit_on_captured_sizes_and_are_plain_beyond_them() -> None:
    caps = sequence_caps((1, 2, 4, 8, 16, 40, 80), tile=8, top=256)
    assert caps == (8, 16, 40, 80, 96, 128, 192, 256)


@pytest.mark.parametrize("sizes", [(), (1, 2, 4)])
def test_without_useful_graphs_the_caps_are_plain(sizes: tuple[int, ...]) -> None:
    assert sequence_caps(sizes, tile=8, top=64) == (8, 16, 24, 32, 48, 64)


def test_there_is_no_cap_below_the_tile() -> None:
    assert sequence_caps(CAPTURE_SIZES, tile=8, top=4) == ()


def test_caps_are_at_most_eleven() -> None:
    caps = sequence_caps(CAPTURE_SIZES, tile=8, top=4096)
    assert len(caps) == 11
    assert {8, 512, 4096} <= set(caps)
