from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.endpoint_text import VOCABULARY, Words, word

IDS = st.integers(VOCABULARY.start, VOCABULARY.stop - 1)


def test_every_token_id_has_a_word_of_its_own() -> None:
    words = {word(token_id) for token_id in VOCABULARY}
    assert len(words) == len(VOCABULARY)
    assert all(len(each) == 4 and each.isascii() and each.isalpha() for each in words)


@given(
    st.lists(IDS, min_size=1, max_size=300),
    st.floats(0.25, 6.0),
    st.integers(0, 40),
)
def test_texts_have_about_the_tokens_of_the_prompt(
    prompt: list[int], tokens_per_word: float, around: int
) -> None:
    text = Words(tokens_per_word, around).text(prompt)
    tokens = len(text.split()) * tokens_per_word + around
    if len(prompt) > around + tokens_per_word:
        assert abs(tokens - len(prompt)) <= tokens_per_word
    else:
        assert len(text.split()) == 1


@given(st.lists(IDS, min_size=8, max_size=50), st.lists(IDS, max_size=50))
def test_prompts_that_begin_alike_have_texts_that_do(shared: list[int], rest: list[int]) -> None:
    words = Words(2.0, 0.0)
    text = words.text(shared)
    assert words.text([*shared, *rest]).startswith(text)


@pytest.mark.parametrize(
    ("fewer", "more", "expected"),
    [
        ((64, 136), (1024, 2056), Words(2.0, 8.0, measured=True)),
        ((64, 64), (1024, 1024), Words(1.0, 0.0, measured=True)),
        # A server that counts what it likes.
        ((64, 7), (1024, 7), Words()),
        ((64, 2056), (1024, 136), Words()),
        ((64, 0), (1024, 100_000), Words()),
    ],
)
def test_what_a_server_counts_is_measured(
    fewer: tuple[int, int], more: tuple[int, int], expected: Words
) -> None:
    assert Words.measured_by(fewer, more) == expected
