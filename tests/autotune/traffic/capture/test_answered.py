from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.traffic.capture.answered import Answer, read_answer
from tests.autotune.traffic.capture.seen import delta, events, sighting, words

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 8},
}


def of_stream(*values: Any, ended: bool = True) -> Answer:
    return read_answer(sighting(events(*values, ended=ended), stream=True))


def counts(answer: Answer) -> tuple[int | None, int | None, int | None, bool]:
    return (
        answer.prompt_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.estimated,
    )


def test_usage_of_a_stream_counts() -> None:
    answer = of_stream(*words("ab"), {"choices": [], "usage": USAGE})
    assert counts(answer) == (11, 5, 8, False)
    assert answer.finished
    assert not answer.failed


def test_without_usage_packets_with_tokens_are_counted_and_marked() -> None:
    answer = of_stream(
        *words("abc"),
        delta(reasoning_content="hm"),
        delta(tool_calls=[{"function": {"arguments": "{"}}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": []},
    )
    assert counts(answer) == (None, 5, None, True)
    assert of_stream(delta(role="assistant", content="")).output_tokens is None


def test_the_last_of_several_usages_counts_even_of_a_stream_that_was_cut_off() -> None:
    chunks = [delta(content="a") | {"usage": {**USAGE, "completion_tokens": n}} for n in (1, 2)]
    answer = of_stream(*chunks, ended=False)
    assert counts(answer) == (11, 2, 8, False)
    assert not answer.finished


def test_comments_and_lines_that_are_cut_off_count_as_nothing() -> None:
    data = b": keep-alive\n\n" + events(*words("ab"), ended=False) + b'data: {"choices'
    seen = sighting(data, stream=True)
    assert read_answer(replace(seen, events=3)).output_tokens == 2


def test_the_first_packet_with_tokens_makes_the_ttft() -> None:
    role, first = events(delta(role="assistant", content=""), ended=False), events(*words("a"))
    data = b": hello\n\n" + role + first
    stamps = ((1.0, 9), (2.0, 9 + len(role)), (3.5, len(data)))
    answer = read_answer(replace(sighting(data, stream=True), stamps=stamps))
    assert answer.ttft_ms == 3.5
    assert of_stream({"choices": []}).ttft_ms is None


def test_a_long_stream_is_counted_from_both_ends() -> None:
    head = events(*words(["a"] * 20), ended=False)
    tail = events(delta(content="z"), {"choices": [{"delta": {}}]})
    seen = replace(sighting(head, stream=True), tail=b'"}}]}\n\n' + tail, size=10**6, events=1000)
    # A role, an end without text and [DONE] are no tokens.
    assert counts(read_answer(seen)) == (None, 997, None, True)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, (11, 5, 8, False)),
        (
            {
                "input_tokens": 20,
                "output_tokens": 4,
                "input_tokens_details": {"cached_tokens": 16},
            },
            (20, 4, 16, False),
        ),
        # Of the messages interface: what was cached comes on top of the input.
        (
            {"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 2},
            (20, 2, 16, False),
        ),
        ({"prompt_tokens": "11", "completion_tokens": -1}, (None, None, None, False)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (None, 0, None, False)),
    ],
)
def test_bodies_have_usage_of_three_kinds(
    usage: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert counts(read_answer(sighting(json.dumps({"usage": usage}).encode()))) == expected


def test_usage_is_found_at_the_end_of_a_body_whose_beginning_is_gone() -> None:
    text = r"he said \"usage\": {\"prompt_tokens\": 99}"
    body = f'{{"choices": [{{"text": "{text}"}}], "usage": {json.dumps(USAGE)}}}'.encode()
    seen = replace(sighting(b""), tail=body[20:], size=len(body) + 5000)
    assert counts(read_answer(seen)) == (11, 5, 8, False)
    cut = replace(sighting(b""), tail=b'"usage": {"prompt_tok', size=9999)
    assert counts(read_answer(cut)) == (None, None, None, False)


def test_a_body_without_usage_is_estimated_from_its_text() -> None:
    row = {"choices": [{"message": {"content": "x" * 41}}]}
    assert counts(read_answer(sighting(json.dumps(row).encode()))) == (None, 10, None, True)
    assert read_answer(sighting(b"<html>")).output_tokens is None


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_bodies_are_read(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(json.dumps({"usage": USAGE}).encode())
    assert counts(read_answer(sighting(packed, encoding=encoding))) == (11, 5, 8, False)


@pytest.mark.parametrize(("encoding", "data"), [("br", b"x"), ("gzip", b"no gzip"), ("gzip", b"")])
def test_what_cannot_be_unpacked_says_nothing(encoding: str, data: bytes) -> None:
    assert read_answer(sighting(data, encoding=encoding)) == Answer()


def test_a_compressed_stream_is_counted_after_unpacking() -> None:
    packed = gzip.compress(events(*words("abc")))
    assert read_answer(sighting(packed, stream=True, encoding="gzip")).output_tokens == 3


def test_the_responses_interface_is_read() -> None:
    answer = of_stream(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.output_text.delta", "delta": "Be"},
        {"type": "response.output_text.delta", "delta": "cause"},
        {
            "type": "response.completed",
            "response": {"usage": {"input_tokens": 9, "output_tokens": 2}},
        },
        ended=False,
    )
    assert (counts(answer), answer.text, answer.finished) == (
        (9, 2, None, False),
        "Because",
        True,
    )
    body = {"output": [{"content": [{"type": "output_text", "text": "Because"}]}]}
    assert read_answer(sighting(json.dumps(body).encode())).text == "Because"


def test_the_messages_interface_is_read() -> None:
    answer = of_stream(
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "So"}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 12}},
        {"type": "message_stop"},
        ended=False,
    )
    assert (counts(answer), answer.text, answer.finished) == ((9, 12, None, False), "So", True)
    body = {"type": "message", "content": [{"type": "text", "text": "So"}]}
    assert read_answer(sighting(json.dumps(body).encode())).text == "So"


@pytest.mark.parametrize("value", [{"error": {"message": "x"}}, {"type": "response.failed"}])
def test_an_error_in_a_stream_is_a_failure(value: Any) -> None:
    assert of_stream(*words("a"), value).failed


@pytest.mark.parametrize("status", [None, 400, 401, 404, 429, 500])
def test_an_error_or_no_answer_is_a_failure(status: int | None) -> None:
    assert read_answer(sighting(status=status)) == Answer(failed=True)


def test_deflate_without_its_frame_is_read_as_browsers_do() -> None:
    bare = zlib.compress(json.dumps({"usage": USAGE}).encode())[2:-4]
    assert counts(read_answer(sighting(bare, encoding="deflate"))) == (11, 5, 8, False)


def test_a_response_that_unpacks_to_far_too_much_is_read_in_part_without_being_kept() -> None:
    told = gzip.compress(events(delta(content="a"), ended=False) + b"\n" * 100_000_000)
    tracemalloc.start()
    try:
        answer = read_answer(sighting(told, stream=True, encoding="gzip"))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts(answer) == (None, 1, None, True)
    assert not answer.finished
    assert most < 2**26
