from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.traffic.formats.outline import outline

ROW = {"a": [1, {"in": 2}], "b{": 'a "quoted": \\ {text}', "c": {"deep": [{"er": None}]}, "d": 1}


@settings(max_examples=60)
@given(st.booleans(), st.sampled_from([None, 2]), st.integers(0, 200))
def test_keys_are_found_as_far_as_the_text_goes(
    is_list: bool, indent: int | None, end: int
) -> None:
    text = json.dumps([ROW, {"second": 1}] if is_list else ROW, indent=indent)
    found = outline(text)
    assert found.is_list is is_list
    assert found.keys == {"a", "b{", "c", "d"}
    assert found.inner == {"in", "deep", "er"}
    assert outline(text[:end]).keys <= found.keys


def test_what_has_no_object_has_no_keys() -> None:
    assert not outline("[1, 2]").keys
    assert not outline("[]").keys
    assert not outline("").keys
