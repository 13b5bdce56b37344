from __future__ import annotations

import pytest

from autotune.traffic.formats.base import BadLine
from autotune.traffic.formats.fields import (
    count,
    elapsed_ms,
    is_true,
    list_of,
    object_of,
    objects_in,
    optional_count,
    optional_text,
    required,
)


@pytest.mark.parametrize("value", [7, 7.0, "7", " 7 ", "7.0"])
def test_counts_are_whole_numbers_however_they_are_written(value: object) -> None:
    assert count({"a": None, "b": "", "c": value}, "a", "b", "c") == 7


@pytest.mark.parametrize("value", [-1, 1.5, True, "SECRET", [1], 10_000_001, "9" * 5000])
def test_what_is_no_count_is_refused_unquoted(value: object) -> None:
    with pytest.raises(BadLine, match=r"^tokens: is ") as caught:
        count({"tokens": value}, "tokens")
    assert "SECRET" not in caught.value.reason + caught.value.hint


def test_what_is_missing_is_named() -> None:
    assert optional_count({}, "a", "b") is None
    with pytest.raises(BadLine, match=r"^a: field required"):
        count({}, "a", "b")
    with pytest.raises(BadLine, match=r"^a: field required"):
        required({"a": None}, "a", "a hint")


def test_tables_hold_objects_as_their_json() -> None:
    assert object_of('{"a": 1}') == object_of({"a": 1}) == {"a": 1}
    assert object_of("{") == object_of(None) == object_of([1]) == {}
    assert list_of("[1]") == list_of([1]) == [1]
    assert list_of("[") == list_of({}) == []
    assert objects_in([{"a": 1}, 2]) == [{"a": 1}]
    assert objects_in(None) == []


def test_flags_and_texts() -> None:
    assert [is_true(each) for each in (True, "True", "t", "False", 1, None)] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert optional_text({"a": 5, "b": "x"}, "a") is None
    assert optional_text({"a": "", "b": "x"}, "a", "b") == "x"


def test_a_time_before_the_start_is_no_time() -> None:
    start_ns = 1_700_000_000_000_000_000
    assert elapsed_ms(start_ns, {"end": 1_700_000_000.5}, "end") == 500
    assert elapsed_ms(start_ns, {"end": 1_600_000_000}, "end") is None
    assert elapsed_ms(start_ns, {"end": "soon"}, "end") is None
    assert elapsed_ms(start_ns, {}, "end") is None
