"""Compiles the inner loops of the simulation where numba is installed.

The same functions run as plain Python without it, ten to twenty times slower.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=NDArray[np.generic])

_HERE = Path(__file__).parent
SWITCH = "AUTOTUNE_COMPILE"
"""The environment variable that keeps plain Python where it is 0."""


def _compiler() -> Callable[[F], F] | None:
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        from numba import config, njit
    except ImportError:
        return None
    folder = str(Path(config.CACHE_DIR or _HERE / "__pycache__") / f"compiled-{_version()}")

    def compile_function(function: F) -> F:
        # Where it is kept is settled here, and anybody else's functions are none of ours.
        others, config.CACHE_DIR = config.CACHE_DIR, folder
        try:
            return njit(cache=True, nogil=True)(function)  # type: ignore[no-any-return]
        finally:
            config.CACHE_DIR = others

    return compile_function


def _version() -> str:
    """Return what changes with any of the files that are compiled.

    By itself numba only looks at the file of a function, not at those of the functions it calls.
    """
    digest = hashlib.sha256()
    for name in ("blocks", "scheduling", "simulation"):
        digest.update((_HERE / f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


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
