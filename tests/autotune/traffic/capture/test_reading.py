from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.traffic.capture.asked import Prompt
from autotune.traffic.capture.blocks import BlockHasher
from autotune.traffic.capture.reading import Reader, TooManySequences
from autotune.traffic.capture.record import Ending, Record
from autotune.traffic.capture.sighting import Way
from autotune.traffic.capture.tokenizer import HubTokenizer, Tokenizer
from autotune.traffic.formats.rows import parse_row
from autotune.traffic.model import TraceRequest
from tests.autotune.traffic.capture.seen import events, sighting, words

HASHER = BlockHasher(b"s" * 32, pause=lambda: None)
DEMO = Path(__file__).resolve().parents[4] / "autotune" / "demo" / "tiny-llama"
ANSWER = json.dumps(
    {
        "choices": [{"message": {"content": "Because."}}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 6},
    }
).encode()


class Letters:
    """A token is a letter; an image is none."""

    def tokens(self, prompt: Prompt) -> Sequence[int] | None:
        if prompt.tokens is not None:
            return prompt.tokens
        return None if "image" in prompt.text else [ord(letter) for letter in prompt.text]


def read(*, tokenizer: Tokenizer | None = None, with_text: bool = False, **seen: Any) -> Record:
    reader = Reader(hasher=HASHER, tokenizer=tokenizer, with_text=with_text)
    (record,) = reader(sighting(seen.pop("response", ANSWER), **seen))
    return record


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_without_a_tokenizer_text_is_hashed() -> None:
    record = read(body=chat("Why?", max_tokens=8, priority=2))
    assert (record.prompt_tokens, record.output_tokens) == (40, 6)
    assert (record.model, record.max_tokens, record.priority) == ("m", 8, 2)
    assert record.text_bytes == len("user\nWhy?")
    assert record.text_ids == HASHER.of_text(b"user\nWhy?", context="m\0")
    assert (record.token_ids, record.prompt_text, record.output_text) == ((), None, None)


def test_with_a_tokenizer_tokens_are_hashed_and_counted() -> None:
    record = read(tokenizer=Letters(), body=chat("Why?"), response=b"{}")
    assert record.token_ids == HASHER.of_tokens([ord(c) for c in "user\nWhy?"], context="m\0")
    assert (record.prompt_tokens, record.text_ids) == (9, ())
    assert read(tokenizer=Letters(), body=chat("Why?")).prompt_tokens == 40


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\ud83d b", "a\ufffd b"),
        ("\ude00", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\0b", "a\0b"),
    ],
)
def test_half_characters_reach_no_trace(text: str, kept: str) -> None:
    answer = events(*words(list(text)))
    body = {"model": text, "prompt": text}
    record = read(with_text=True, api="completions", body=body, response=answer, stream=True)
    assert (record.model, record.prompt_text, record.output_text) == (kept, kept, kept)
    row = TraceRequest(
        timestamp_ms=0.0,
        input_length=1,
        output_length=1,
        hash_ids=(1,),
        model=record.model,
        prompt_text=record.prompt_text,
        output_text=record.output_text,
    )
    assert parse_row(row.to_line()) == row


def test_what_the_tokenizer_cannot_count_falls_back_to_text() -> None:
    record = read(tokenizer=Letters(), body=chat("an image"))
    assert record.token_ids == ()
    assert record.text_ids


def test_token_ids_need_no_tokenizer() -> None:
    record = read(api="completions", body={"model": "m", "prompt": [1, 2, 3]})
    assert record.token_ids == HASHER.of_tokens([1, 2, 3], context="m\0")


def test_clients_with_a_salt_of_their_own_share_nothing() -> None:
    assert read(body=chat("a", cache_salt="x")).text_ids != read(body=chat("a")).text_ids


def test_text_is_kept_only_where_asked_for() -> None:
    record = read(body=chat("Why?"), with_text=True)
    assert (record.prompt_text, record.output_text) == ("user\nWhy?", "Because.")


def test_several_sequences_are_several_records() -> None:
    reader = Reader(hasher=HASHER)
    body = {"model": "m", "prompt": ["once", "twice"], "n": 2}
    usage = json.dumps({"usage": {"prompt_tokens": 4, "completion_tokens": 10}}).encode()
    records = reader(sighting(usage, api="completions", body=body))
    assert [each.output_tokens for each in records] == [3, 3, 2, 2]
    assert all(each.output_estimated for each in records)
    assert [each.prompt_tokens for each in records] == [None] * 4
    assert records[0].text_ids == records[1].text_ids != records[2].text_ids
    (copies, same) = reader(sighting(usage, api="chat", body=chat("Why?", n=2)))
    assert (copies.prompt_tokens, copies.output_tokens) == (4, 5)
    assert copies.text_ids == same.text_ids


def test_a_request_for_a_million_sequences_is_refused_before_any_is_made() -> None:
    body = {"model": "m", "prompt": ["a"] * 10_000, "n": 128}
    with pytest.raises(TooManySequences):
        read(api="completions", body=body)


@pytest.mark.parametrize(
    ("response", "way", "ending"),
    [
        (events(*words("ab")), "ended", "completed"),
        # Some clients close the connection with the last event.
        (events(*words("ab")), "cancelled", "completed"),
        (events(*words("ab"), ended=False), "cancelled", "cancelled"),
        (events(*words("ab"), ended=False), "broken", "failed"),
        # Not every server ends its streams with [DONE].
        (events(*words("ab"), ended=False), "ended", "completed"),
        (events(*words("ab"), {"error": {"message": "x"}}), "ended", "failed"),
    ],
)
def test_how_a_stream_ends(response: bytes, way: Way, ending: Ending) -> None:
    record = read(response=response, stream=True, way=way)
    assert (record.ending, record.output_tokens) == (ending, 2)
    assert (record.ttft_ms, record.e2e_ms) == (5.0, 9.0)


def test_an_error_is_not_hashed() -> None:
    record = read(status=500, response=b"oh")
    assert record == Record(arrival_s=1000.0, ending="failed", e2e_ms=9.0)
    assert read(status=None, way="cancelled").ending == "failed"


def test_a_body_that_was_not_kept_still_counts() -> None:
    record = read(body=b"")
    assert (record.prompt_tokens, record.output_tokens, record.text_ids) == (40, 6, ())


class Words:
    """Stands for a tokenizer of transformers: a token is a word."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, return_dict: bool, **more: Any
    ) -> list[int]:
        assert not return_dict
        assert more.pop("add_generation_prompt")
        if more:
            raise ValueError("a template that does not know these")
        return [len(each["content"]) for each in messages]


def test_texts_and_chats_are_counted_as_the_server_would() -> None:
    tokenizer = HubTokenizer("words", load=lambda _name: Words())
    assert tokenizer.tokens(Prompt(text="once and again", raw=True)) == [4, 3, 5]
    messages = ({"role": "user", "content": "Why?"},)
    assert tokenizer.tokens(Prompt(text="", messages=messages)) == [4]
    assert tokenizer.tokens(Prompt(text="", tokens=(1, 2))) == (1, 2)
    # What it cannot count is estimated.
    assert tokenizer.tokens(Prompt(text="an image")) is None
    assert tokenizer.tokens(Prompt(text="", messages=messages, template={"tools": 5})) is None
    assert tokenizer.tokens(Prompt(text="", messages=({"role": "user"},))) is None


@pytest.mark.engine
def test_the_tokenizer_of_a_model_counts_text_and_chats() -> None:
    tokenizer = HubTokenizer(str(DEMO))
    text = tokenizer.tokens(Prompt(text="user: hi", raw=True))
    chat = tokenizer.tokens(Prompt(text="", messages=({"role": "user", "content": "hi"},)))
    assert text is not None
    assert chat is not None
    assert list(chat)[1 : 1 + len(text)] == list(text)
    assert len(chat) > len(text)


def test_a_tokenizer_that_is_missing_is_named(tmp_path: Path) -> None:
    def load(name: str) -> None:
        raise OSError(f"{name} is no folder with a tokenizer")

    with pytest.raises(UsageError, match=r"--tokenizer .* is no folder"):
        HubTokenizer(str(tmp_path), load=load)
