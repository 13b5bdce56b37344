from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.traffic.well_formed import well_formed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("né\0", "né\0"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("é\ud83d", "é\ufffd"),
    ],
)
def test_halves_are_joined_or_replaced(text: str, expected: str) -> None:
    assert well_formed(text) == expected


@given(st.text(st.characters(codec=None)))
def test_what_comes_out_is_unicode_and_stays_as_it_is(text: str) -> None:
    found = well_formed(text)
    found.encode()
    assert well_formed(found) == found
    assert json.loads(json.dumps(found)) == found


@given(st.text(st.characters(codec="utf-8")))
def test_unicode_stays_as_it_is(text: str) -> None:
    assert well_formed(text) == text
