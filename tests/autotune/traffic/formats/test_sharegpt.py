from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.sharegpt import read
from tests.autotune.traffic.formats.files import AT_FIVE_PER_S, json_document, json_lines


def turn(speaker: str, text: str) -> dict[str, str]:
    return {"from": speaker, "value": text}


CONVERSATIONS = [
    {"id": "1", "conversations": [turn("human", "x" * 396), turn("gpt", "y" * 40)]},
    {
        "id": "2",
        "conversations": [
            turn("system", "x" * 100), turn("human", "x" * 300), turn("gpt", "y" * 4),
            turn("human", "more"), turn("gpt", "no"),
        ],
    },
    {"id": "3", "conversations": [turn("human", "nobody answers")]},
    {"id": "4", "conversations": []},
    {"id": "5", "conversations": [turn("human", "a"), turn("gpt", "")]},
]  # fmt: skip


def test_the_first_exchange_of_each_conversation_is_a_request(tmp_path: Path) -> None:
    path = json_document(tmp_path, CONVERSATIONS)
    assert detect(path).name == "sharegpt"
    trace = read(path, AT_FIVE_PER_S)
    assert [r.output_length for r in trace.requests] == [10, 1]
    assert [r.input_length for r in trace.requests] == [101, 104]
    sentences = trace.notes.sentences()
    assert "Turns after the first exchange of a conversation, left out: 2." in sentences
    assert "Rows without prompt or output tokens, left out: 3." in sentences


def test_openai_messages_and_json_lines_are_read(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = json_lines(tmp_path, {"messages": messages}, {"messages": messages})
    assert detect(path).name == "sharegpt"
    assert read(path, AT_FIVE_PER_S).meta.requests == 2


def test_turns_without_names_take_turns(tmp_path: Path) -> None:
    path = json_document(tmp_path, [{"conversations": [{"value": "a"}, {"value": "bcdef"}]}])
    assert read(path, AT_FIVE_PER_S).requests[0].output_length == 2


def test_no_answers_at_all_are_no_trace(tmp_path: Path) -> None:
    path = json_document(tmp_path, [{"conversations": [turn("human", "SECRET")]}])
    with pytest.raises(TraceError, match="no request with prompt and output tokens") as caught:
        read(path, AT_FIVE_PER_S)
    assert caught.value.hint == "Rows without prompt or output tokens, left out: 1."


def test_what_is_no_conversation_is_named_by_its_line(tmp_path: Path) -> None:
    path = json_document(tmp_path, [{"conversations": []}, {"text": "SECRET"}, "SECRET"])
    with pytest.raises(TraceError) as caught:
        read(path, AT_FIVE_PER_S)
    assert caught.value.message == (
        f"{path}:5: conversations: field required; 2 of 3 conversations cannot be read"
    )
