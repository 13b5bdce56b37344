"""How values become columns: strict JSON, compressed arrays, text that every database takes."""

from __future__ import annotations

import io
import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import StorageError

_INFINITY = re.compile(r"\\*-?inf")


def encode(value: object, *, name: str) -> str:
    """Return ``value`` as one line of strict JSON with sorted keys.

    Infinite floats become the strings "inf" and "-inf"; a text that reads so is escaped with a
    backslash. ``decode`` reverses both. Tuples become lists, numpy scalars Python numbers.

    Raises:
        StorageError: On NaN, a key that is no text or a value that JSON does not know; the
            message gives its path, which starts with ``name``.
    """
    return json.dumps(_plain(value, name), sort_keys=True, allow_nan=False)


def encode_optional(value: object | None, *, name: str) -> str | None:
    """Return None for None, so that a missing value is NULL in its column."""
    return None if value is None else encode(value, name=name)


def decode(text: str) -> Any:
    """Return what ``encode`` was given, with lists in place of tuples."""
    return _restored(json.loads(text))


def decode_optional(text: str | None) -> Any:
    """Return None for NULL."""
    return None if text is None else decode(text)


def plain(values: Mapping[str, object], *, name: str) -> dict[str, Any]:
    """Return the values as ``encode`` writes them, for others to store as JSON."""
    written: dict[str, Any] = json.loads(encode(values, name=name))
    return written


def pack(array: NDArray[Any], *, name: str) -> bytes:
    """Return the array as a compressed ``.npy`` file; NaN and infinities are kept as they are.

    Raises:
        StorageError: If the array holds Python objects.
    """
    buffer = io.BytesIO()
    try:
        np.save(buffer, array, allow_pickle=False)
    except ValueError as error:
        raise StorageError(f"Sample {name!r} cannot be stored: {error}.") from error
    return zlib.compress(buffer.getvalue())


def unpack(data: bytes, *, name: str) -> NDArray[Any]:
    """Return the array that ``pack`` was given.

    Args:
        name: What the message of an error calls it.

    Raises:
        StorageError: If the bytes are damaged.
    """
    try:
        array: NDArray[Any] = np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False)
    except (zlib.error, ValueError, EOFError) as error:
        raise StorageError(
            f"Sample {name} is damaged: {error}.",
            hint="Restore the database from a copy: the study is judged from its samples.",
        ) from error
    return array


def clean(text: str | None) -> str | None:
    """Return text without NUL and lone surrogates, which databases refuse; logs hold both."""
    if text is None:
        return None
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _plain(value: object, path: str) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case float():
            return _plain_float(value, path)
        case str():
            return f"\\{value}" if _INFINITY.fullmatch(value) else value
        case None | bool() | int():
            return value
        case Mapping():
            return {_key(key, path): _plain(item, f"{path}.{key}") for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
        case _:
            raise StorageError(f"{path} is of type {type(value).__name__}, which is not stored.")


def _plain_float(value: float, path: str) -> float | str:
    if math.isnan(value):
        raise StorageError(f"{path} is not a number.", hint="Give None for a missing value.")
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(value)


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise StorageError(f"{path} has the key {key!r}, which is no text.")
    return key


def _restored(value: Any) -> Any:
    match value:
        case str() if _INFINITY.fullmatch(value):
            return value[1:] if value.startswith("\\") else float(value)
        case list():
            return [_restored(item) for item in value]
        case dict():
            return {key: _restored(item) for key, item in value.items()}
        case _:
            return value
