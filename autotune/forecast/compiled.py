"""Compiles the inner loops of the simulation where numba is installed.

The same functions run as plain Python without it, a hundred times slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

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
