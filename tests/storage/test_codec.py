from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import codec
from storage.errors import StorageError

_texts = st.text() | st.sampled_from(["inf", "-inf", "\\inf", "\\\\-inf"])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts,
    lambda inner: st.lists(inner) | st.dictionaries(_texts, inner),
    max_leaves=12,
)


@given(_values)
def test_what_is_encoded_comes_back(value: Any) -> None:
    assert codec.decode(codec.encode(value, name="value")) == value


@given(_values)
def test_the_text_is_strict_json(value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(codec.encode(value, name="value"), parse_constant=refuse)


def test_infinities_read_as_text_to_others_and_as_floats_to_us() -> None:
    text = codec.encode({"high": math.inf, "low": -math.inf}, name="interval")
    assert json.loads(text) == {"high": "inf", "low": "-inf"}
    assert codec.decode(text) == {"high": math.inf, "low": -math.inf}


def test_tuples_and_numpy_scalars_become_plain() -> None:
    value = {"cell": (np.int64(8), np.float64(0.5), np.bool_(True))}
    assert codec.encode(value, name="value") == '{"cell": [8, 0.5, true]}'


def test_missing_stays_missing() -> None:
    assert codec.decode_optional(codec.encode_optional(None, name="metrics")) is None


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"ttft_p95": math.nan}, "metrics.ttft_p95 is not a number"),
        ({"a": [0.0, np.float32("nan")]}, r"metrics.a\[1\] is not a number"),
        ({1: 2.0}, "metrics has the key 1"),
        ({"a": {2.0}}, "metrics.a is of type set"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: object, path: str) -> None:
    with pytest.raises(StorageError, match=path):
        codec.encode(value, name="metrics")


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, np.nan, np.inf, -np.inf]),
        np.arange(12, dtype=np.int32).reshape(3, 4),
        np.array([], dtype=np.float32),
        np.array([True, False]),
    ],
)
def test_arrays_come_back_with_shape_and_type(array: np.ndarray[Any, Any]) -> None:
    restored = codec.unpack(codec.pack(array, name="ttft_ms"), name="ttft_ms")
    assert restored.dtype == array.dtype
    np.testing.assert_array_equal(restored, array)


def test_arrays_of_objects_are_refused() -> None:
    with pytest.raises(StorageError, match="'requests'"):
        codec.pack(np.array([{"a": 1}], dtype=object), name="requests")


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda _: b"x", lambda _: b""])
def test_damaged_arrays_are_named(damage: Any) -> None:
    data = codec.pack(np.arange(1000.0), name="ttft_ms")
    with pytest.raises(StorageError, match="Sample ttft_ms is damaged"):
        codec.unpack(damage(data), name="ttft_ms")


def test_clean_text_is_storable() -> None:
    assert codec.clean("a\0b\ud800c") == "a\ufffdb?c"
    assert codec.clean("héllo ✓") == "héllo ✓"
    assert codec.clean(None) is None
