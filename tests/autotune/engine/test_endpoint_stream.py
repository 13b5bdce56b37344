from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.endpoint_stream import EventLines, NoEvent, StreamRead, Usage, error_words

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def events_of(*packets: bytes) -> list[str]:
    lines = EventLines()
    found = [data for packet in packets for data in lines.feed(packet)]
    return [*found, *lines.finish()]


def read_of(*chunks: object, end: str = "[DONE]") -> StreamRead:
    read = StreamRead()
    for chunk in chunks:
        read.take(json.dumps(chunk))
    if end:
        read.take(end)
    return read


@given(st.lists(TEXTS, max_size=6), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_packets_may_be_cut_anywhere(texts: list[str], end: bytes, data: st.DataObject) -> None:
    payloads = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    raw = b"".join(
        b": keep-alive" + end + b"id: 7" + end + b"data: " + each.encode() + end + end
        for each in payloads
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    places = [0, *cuts, len(raw)]
    packets = [raw[a:b] for a, b in pairwise(places)]
    assert events_of(*packets) == payloads


def test_data_of_several_lines_and_an_end_without_an_empty_line() -> None:
    assert events_of(b"data: {\ndata:}\n\ndata: last") == ["{\n}", "last"]


def test_the_head_is_kept_and_no_more() -> None:
    lines = EventLines()
    assert list(lines.feed(b"<html>" + b"x" * 5000)) == []
    assert lines.head.startswith(b"<html>")
    assert len(lines.head) == 2048


def test_what_is_no_utf8_is_not_quoted() -> None:
    with pytest.raises(NoEvent, match="no UTF-8"):
        events_of(b"data: \xff\n\n")


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"text": "a"}, 1),
        ({"text": ""}, 0),
        ({"text": "", "token_ids": [1, 2, 3]}, 3),
        ({"text": "a", "token_ids": []}, 0),
        ({"text": "a", "token_ids": None}, 1),
        ({"delta": {"role": "assistant", "content": ""}}, 0),
        ({"delta": {"content": "a"}}, 1),
        ({"delta": {"reasoning": "a"}}, 1),
        ({"delta": {"reasoning_content": "a"}}, 1),
        ({"delta": {"tool_calls": [{"index": 0}]}}, 1),
        ({"delta": {"refusal": "no"}}, 1),
        ({"delta": {}, "finish_reason": "stop"}, 0),
        ({"delta": None}, 0),
        ("no object", 0),
    ],
)
def test_what_counts_as_a_token(choice: object, tokens: int) -> None:
    read = StreamRead()
    assert read.take(json.dumps({"choices": [choice]})) == tokens
    assert read.tokens == tokens


@pytest.mark.parametrize("choices", [[], None, "x"])
def test_chunks_without_choices(choices: object) -> None:
    read = read_of({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 0}})
    assert (read.tokens, read.done, read.usage) == (0, True, Usage(3, 0))


@pytest.mark.parametrize("data", ["", "{", "[1]", "7", '"x"', "[" * 100_000])
def test_what_is_no_json_object_is_not_quoted(data: str) -> None:
    read = read_of({"choices": []}, end="")
    with pytest.raises(NoEvent, match=r"^event 2 of the stream is no JSON( object)?$"):
        read.take(data)


USAGES: list[tuple[dict[str, Any], Usage | None]] = [
    ({"prompt_tokens": 9, "completion_tokens": 4}, Usage(9, 4)),
    (
        {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        Usage(9, 4, 8, 2),
    ),
    ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None}, Usage(9, 4)),
    ({"prompt_tokens": 9}, None),
    ({"prompt_tokens": -1, "completion_tokens": 4}, None),
    ({"prompt_tokens": True, "completion_tokens": "4"}, None),
]


@pytest.mark.parametrize(("given_usage", "usage"), USAGES)
def test_usage(given_usage: dict[str, Any], usage: Usage | None) -> None:
    assert Usage.of({"usage": given_usage}) == usage


def test_the_last_usage_wins_and_null_does_not() -> None:
    read = read_of(
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
        {"choices": [], "usage": None},
    )
    assert read.usage == Usage(9, 2)


def test_the_server_is_believed_over_chunks() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    chunks = [{"choices": [{"text": "two of them"}]}] * 3
    read = read_of(*chunks, {"choices": [], "usage": usage})
    assert (read.tokens, read.output_tokens, read.exact) == (3, 5, False)
    read = read_of(*[{"choices": [{"text": "a"}]}] * 5, {"choices": [], "usage": usage})
    assert (read.output_tokens, read.exact) == (5, True)
    read = read_of(*chunks)
    assert (read.output_tokens, read.exact) == (3, False)


@pytest.mark.parametrize(("name", "tokens"), [("content", 2), ("reasoning", 8)])
def test_reasoning_that_was_not_sent_does_not_count(name: str, tokens: int) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 8,
        "completion_tokens_details": {"reasoning_tokens": 6},
    }
    chunks = [{"choices": [{"delta": {name: "a"}}]}] * 2
    assert read_of(*chunks, {"choices": [], "usage": usage}).output_tokens == tokens


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "a"}}, "a"),
        ({"error": "a"}, "a"),
        ({"message": "a"}, "a"),
        ({"detail": "a"}, "a"),
        ({"error": {"code": 3}}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_where_errors_have_their_words(body: object, words: str) -> None:
    assert error_words(body) == words
