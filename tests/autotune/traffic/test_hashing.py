from __future__ import annotations

import numpy as np

from autotune.traffic.hashing import key, outputs, uniforms


def test_outputs_are_those_of_splitmix64() -> None:
    """The first outputs for state 0, as Vigna's reference implementation prints them."""
    state = np.zeros(1, dtype=np.uint64)
    found = outputs(state, np.arange(3, dtype=np.uint64)).tolist()
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_keys_depend_on_every_word_and_their_order() -> None:
    keys = [key(), key(0), key(1), key(0, 1), key(1, 0), key(-1), key(-1, 0), key(2**64)]
    assert key(2**64) == key(0)
    assert len({int(each[0]) for each in keys}) == 7


def test_uniforms_are_even_and_open() -> None:
    draws = uniforms(key(7), np.arange(100_000, dtype=np.uint64))
    assert 0 < draws.min() < 1e-4
    assert 1 - 1e-4 < draws.max() < 1
    tenths = np.bincount((draws * 10).astype(int), minlength=10)
    assert np.all(np.abs(tenths - 10_000) < 400)
