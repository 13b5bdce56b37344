from __future__ import annotations

from pathlib import Path

from autotune.traffic.capture.asked import Prompt
from autotune.traffic.formats.prefixes import prefixes_of
from autotune.traffic.formats.recorded import Recorded
from autotune.traffic.formats.texts import Texts
from tests.autotune.traffic.formats.files import word_tokenizer


def recorded(texts: Texts, prompt: str, tokens: int | None = None) -> Recorded:
    text = texts.prompt(Prompt(text=prompt))
    length = text.tokens if tokens is None else tokens
    return Recorded(arrival_ns=0, input_length=length, output_length=1, text=text)


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


def test_texts_share_the_blocks_in_which_they_begin_alike() -> None:
    texts = Texts(None)
    start = "You are a helpful assistant. " * 32  # 928 characters, about 14.5 blocks.
    rows = [recorded(texts, start + end * 100) for end in "xyy"]
    found = prefixes_of(rows, 16)
    assert found.estimated
    first, second, third = found.hash_ids
    assert len(first) == 17
    assert 13 <= shared(first, second) <= 15
    assert second == third
    assert first[0] == 0  # Ids are numbered and say nothing of a text.
    assert max(map(max, found.hash_ids)) < 40


def test_the_same_texts_give_the_same_ids() -> None:
    prompts = ["a" * 300, "a" * 200 + "b" * 100]
    one, other = (
        prefixes_of([recorded(texts, each) for each in prompts], 16).hash_ids
        for texts in (Texts(None), Texts(None))
    )
    assert one == other


def test_ids_of_tokens_are_fitted_to_what_the_server_counted(tmp_path: Path) -> None:
    texts = Texts(str(word_tokenizer(tmp_path)))
    exact = prefixes_of([recorded(texts, "a " * 40), recorded(texts, "a " * 32 + "b")], 16)
    assert not exact.estimated
    assert exact.hash_ids == [(0, 1, 2), (0, 1, 3)]
    fitted = prefixes_of([recorded(texts, "a " * 40, 70), recorded(texts, "a " * 40, 20)], 16)
    assert fitted.estimated
    assert fitted.hash_ids == [(0, 1, 2, 3, 4), (0, 1)]


def test_what_has_no_text_has_no_prefix() -> None:
    bare = Recorded(arrival_ns=0, input_length=40, output_length=1)
    own = Recorded(arrival_ns=0, input_length=32, output_length=1, hash_ids=(7, 9))
    assert prefixes_of([bare, own], 16).hash_ids == [(), (7, 9)]
