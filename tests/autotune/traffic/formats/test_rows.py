from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.traffic.formats.base import BadLine
from autotune.traffic.formats.rows import parse_row
from autotune.traffic.model import TraceRequest

ROW = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def row(**changes: Any) -> str:
    return json.dumps({**ROW, **changes})


def test_a_row_is_a_request() -> None:
    assert parse_row(row()) == TraceRequest(0.0, 600, 5, (1, 2))
    assert parse_row(row(hash_ids=None)).hash_ids == ()


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (row()[:40], "invalid JSON: EOF while parsing a string at character 40", "cut off"),
        (row()[:-1], "invalid JSON: EOF while parsing an object at character", "cut off"),
        ("{'timestamp': 0}", "invalid JSON: key must be a string", 'a line is {"timestamp"'),
        ('{"a":' * 500, "invalid JSON: recursion limit exceeded", "a line is"),
        ('{"timestamp": 1' + "0" * 5000, "invalid JSON: number out of range", "a line is"),
        ("17", "the line must be an object", "a line is"),
        (row(input_len=6), "unknown field 'input_len'", "did you mean 'input_length'?"),
        ('{"timestamp": 0, "input_len": 6}', "unknown field", "did you mean 'input_length'?"),
        (
            '{"time": 1.5, "Prompt_Tokens": 7, "completion_tokens": 9}',
            "unknown field 'time'",
            "rename time to timestamp (in ms), Prompt_Tokens to input_length, completion_",
        ),
        (
            '{"timestamp": 1, "id": "a", "n_prompt": 7, "output_length": 9}',
            "unknown field 'id'",
            "rename n_prompt to input_length; leave the others out",
        ),
        (
            row(prompt_tokens=7),
            "unknown field 'prompt_tokens'",
            "leave it out: input_length says it",
        ),
        ('{"architectures": ["X"], "vocab_size": 5}', "unknown field", "known fields are"),
        (row(**{"\x1b[2J" * 99: 1}), "unknown field '\\x1b[2J", "known fields are timestamp, "),
        ('{"session_id": "a", "turns": []}', "unknown field 'session_id'", "for each request"),
        (row(chat_id=1, turn=1), "unknown field 'chat_id'", "count in seconds"),
        (row(prompt="secret words"), "unknown field 'prompt'", "lengths and no text"),
        (row(timestamp="0"), "timestamp: ", "timestamp is the arrival in ms"),
        (row(input_length=-5), "input_length: ", "from 1 to 10000000, without quotes"),
        (row(output_length=True), "output_length: ", "from 1 to 10000000"),
        (row(hash_ids=[1, 2.5]), "hash_ids.1: ", "2^63 - 1"),
        (row(hash_ids=[]), "hash_ids: 0 ids", "leave hash_ids out"),
        (row(max_tokens=0), "max_tokens: ", "or leave it out"),
        (row(priority=2**31), "priority: ", "32 bits"),
        (row(cached_tokens=-1), "cached_tokens: ", "from 0 to"),
        (row(model=5), "model: ", "a text in quotes"),
    ],
)
def test_a_bad_row_says_what_and_how(text: str, reason: str, hint: str) -> None:
    with pytest.raises(BadLine) as caught:
        parse_row(text)
    assert caught.value.reason.startswith(reason)
    assert hint in caught.value.hint
    assert len(caught.value.reason) < 120
    assert "secret" not in caught.value.reason + caught.value.hint
