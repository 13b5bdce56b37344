"""Numbers from a hash: the same on every machine, in every process, with every numpy.

SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) by counter: element ``i`` of a stream is the
``i``-th output of the generator whose state is the stream's key. Nothing has a state, so
streams may be read in any order and length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from objectives.arrays import F8

U8 = NDArray[np.uint64]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1


def mix(words: U8) -> U8:
    """Return the finaliser of SplitMix64 for each word: a bijection that spreads every bit."""
    words = (words ^ (words >> np.uint64(30))) * _MULTIPLIER_1
    words = (words ^ (words >> np.uint64(27))) * _MULTIPLIER_2
    return words ^ (words >> np.uint64(31))


def outputs(keys: U8, counters: U8) -> U8:
    """Return output ``counters`` of the generators with states ``keys``, broadcast."""
    return mix(keys + (counters + np.uint64(1)) * _GOLDEN_GAMMA)


def key(*words: int) -> U8:
    """Return the state, of shape (1,), that belongs to a sequence of integers."""
    state = np.array([_GOLDEN_GAMMA])
    for word in words:
        state = outputs(state, np.array([word & _MASK], dtype=np.uint64))
    return state


def uniforms(keys: U8, counters: U8) -> F8:
    """Return numbers of the open interval (0, 1), 53 bits each."""
    return ((outputs(keys, counters) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
