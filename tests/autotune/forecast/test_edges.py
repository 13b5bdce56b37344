from __future__ import annotations

import numpy as np
import pytest

from autotune.forecast.edges import Edge, find_edges, find_quantum
from objectives.arrays import F8


def repeats(*, jump: float = 0.0, noise: float = 0.002, count: int = 5, seed: int = 0) -> F8:
    rng = np.random.default_rng(seed)
    return 10 * (1 + jump) * np.exp(rng.normal(0, noise, count))


def tiles(*sizes: int, jump_ratio: float = 0.1) -> list[Edge]:
    return [Edge(size, size + 1, 1.0, jump_ratio, "tile") for size in sizes]


def pairs(*sizes: int) -> list[int]:
    return [each for size in sizes for each in (size, size + 1)]


def test_a_jump_is_found_with_its_size_and_kind() -> None:
    times = {512: repeats(), 513: repeats(jump=0.5, seed=1), 1024: repeats(seed=2)}
    [edge] = find_edges(times, capture_limit=512)
    assert (edge.from_tokens, edge.to_tokens, edge.kind) == (512, 513, "capture")
    assert edge.jump_ratio == pytest.approx(0.5, abs=0.01)
    assert edge.jump_ms == pytest.approx(5, abs=0.1)
    assert find_edges(times, capture_limit=None)[0].kind == "tile"


def test_small_jumps_few_repeats_and_noise_make_no_edge() -> None:
    assert not find_edges({64: repeats(), 65: repeats(jump=0.02, seed=1)}, capture_limit=None)
    few = {64: repeats(count=2), 65: repeats(jump=0.5, count=2)}
    assert not find_edges(few, capture_limit=None)
    noisy = {64: repeats(noise=0.2), 65: repeats(jump=0.1, noise=0.2, seed=1)}
    assert not find_edges(noisy, capture_limit=None)


def test_sizes_that_are_not_neighbours_are_not_compared() -> None:
    assert not find_edges({64: repeats(), 72: repeats(jump=0.5)}, capture_limit=None)


@pytest.mark.parametrize("quantum", [16, 64, 128, 256])
def test_the_quantum_is_the_largest_that_explains_the_jumps(quantum: int) -> None:
    sizes = [quantum * k for k in range(1, 9)]
    between = [size + quantum // 2 for size in sizes]
    assert find_quantum(tiles(*sizes), pairs(*sizes, *between)) == quantum


def test_three_fifths_of_the_multiples_are_enough() -> None:
    sizes = pairs(*range(64, 2049, 64))
    assert find_quantum(tiles(128, 256, 384, 512, 768), sizes) == 128


def test_there_is_no_quantum_in_two_jumps_small_ones_scattered_ones_or_the_capture_limit() -> None:
    sizes = pairs(*range(64, 2049, 64))
    assert find_quantum([], sizes) is None
    assert find_quantum(tiles(128, 256), sizes) is None
    assert find_quantum(tiles(128, 256, 384, jump_ratio=0.04), sizes) is None
    assert find_quantum(tiles(128, 1024, 1920), sizes) is None
    capture = [Edge(512, 513, 15.0, 1.2, "capture")]
    assert find_quantum(tiles(128, 256) + capture, sizes) is None
