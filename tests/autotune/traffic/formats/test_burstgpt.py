from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.burstgpt import read
from tests.autotune.traffic.formats.files import text_file

HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def test_times_are_seconds_and_failures_are_counted(tmp_path: Path) -> None:
    path = text_file(
        tmp_path,
        HEADER,
        "45,ChatGPT,1087,230,1317,Conversation log",
        "5,ChatGPT,472,18,490,Conversation log",
        "118.5,GPT-4,417,276,693,API log",
        "119,GPT-4,417,0,417,API log",
        "120,GPT-4,0,7,7,API log",
    )
    assert detect(path).name == "burstgpt"
    trace = read(path)
    assert [
        (r.timestamp_ms, r.input_length, r.output_length, r.model) for r in trace.requests
    ] == [
        (0.0, 472, 18, "ChatGPT"),
        (40_000.0, 1087, 230, "ChatGPT"),
        (113_500.0, 417, 276, "GPT-4"),
    ]
    assert trace.meta.prefixes == "unknown"
    assert trace.meta.captured_at is None
    assert trace.notes.failed == 1
    assert trace.notes.without_tokens == 1
    assert trace.notes.reordered == 1
    assert "Requests that failed, left out: 1." in trace.notes.sentences()


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    path = text_file(
        tmp_path,
        "Session ID,Elapsed time,Model,Request tokens,Timestamp,Response tokens,Log Type",
        "3,1.5,ChatGPT,472,5.25,18,Conversation log",
    )
    assert read(path).requests[0].input_length == 472


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("soon,ChatGPT,1,1,2,x", "Timestamp: is no time"),
        (",ChatGPT,1,1,2,x", "Timestamp: is no time"),
        ("5,ChatGPT,many,1,2,x", "Request tokens: is a text of 4 characters, not a count"),
        ("5,ChatGPT,1,,2,x", "Response tokens: field required"),
        ("5,ChatGPT,1,1", "4 columns instead of 6"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text_file(tmp_path, HEADER, "5,ChatGPT,1,1,2,x", row))
    assert caught.value.message.startswith(f"{tmp_path / 'log.csv'}:3: {reason}")
