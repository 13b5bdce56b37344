"""Compiles the inner loops of the simulation where numba is installed.

The same functions run as plain Python without it, ten to twenty times slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=NDArray[np.generic])

SWITCH = "AUTOTUNE_COMPILE"
"""The environment variable that keeps plain Python where it is 0."""


def _compiler() -> Callable[..., Any] | None:
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        from numba import njit
    except ImportError:
        return None
    return njit(cache=True, nogil=True)  # type: ignore[no-any-return]


_compile = _compiler()
COMPILED = _compile is not None


def compiled(function: F) -> F:
    """Compile a function of numbers, arrays and named tuples of these, if there is a compiler."""
    return function if _compile is None else _compile(function)


def numbers(array: A) -> A:
    """Return an array in the form that is read one by one the fastest: plain Python takes a list.

    Both are indexed alike, a row of two dimensions first, and have a length.
    """
    return array if COMPILED else array.tolist()
