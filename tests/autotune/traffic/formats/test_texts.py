from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.traffic.capture.asked import Prompt
from autotune.traffic.formats.texts import Texts, chat_prompt
from tests.autotune.traffic.formats.files import word_tokenizer


def test_without_a_tokenizer_four_characters_are_a_token() -> None:
    texts = Texts(None)
    text = texts.prompt(Prompt(text="x" * 41))
    assert (text.tokens, text.estimated, text.size_bytes) == (11, True, 41)
    assert texts.answer_tokens("") == 0
    assert texts.answer_tokens("ab") == 1
    assert "estimates, 4 characters a token" in texts.remark()


def test_a_tokenizer_counts(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path)
    texts = Texts(str(path))
    text = texts.prompt(Prompt(text="a b c " * 10))
    assert (text.tokens, text.estimated, len(text.hash_ids)) == (30, False, 2)
    assert texts.answer_tokens("a b") == 2
    assert texts.remark() == f"Lengths of texts were counted with the tokenizer {path}."


def test_tokens_that_a_client_gave_need_no_tokenizer() -> None:
    text = Texts(None).prompt(Prompt(text="", tokens=(5,) * 17))
    assert (text.tokens, text.estimated, len(text.hash_ids)) == (17, False, 2)


@pytest.mark.parametrize("content", ["{}", "no JSON", ""])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is no tokenizer"):
        Texts(str(path))


def test_messages_with_more_than_text_keep_their_texts() -> None:
    prompt = chat_prompt(
        [{"role": "user", "content": "a"}, {"role": "user", "content": [{"image": 1}]}, "b"]
    )
    assert prompt.text == "user\na"
    assert prompt.messages is None
    assert chat_prompt([{"role": "user", "content": "a"}]).messages is not None


def test_a_pipe_is_no_tokenizer_and_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is no tokenizer"):
        Texts(str(path))
