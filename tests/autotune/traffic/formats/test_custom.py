from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TraceError, UsageError
from autotune.traffic.formats import detect
from autotune.traffic.formats.base import ReadOptions
from autotune.traffic.formats.custom import read
from tests.autotune.traffic.formats.files import AT_FIVE_PER_S, Row, json_lines, word_tokenizer

ROWS: tuple[Row, ...] = (
    {"prompt": "a b c " * 12, "output_tokens": 10},
    {"prompt": "a b c " * 12, "output_tokens": 152, "category": "b"},
    {"prompt": "", "output_tokens": 5},
    {"prompt": "c", "output_tokens": 0},
)


def test_lengths_are_estimated_and_times_are_made(tmp_path: Path) -> None:
    path = json_lines(tmp_path, *ROWS)
    assert detect(path).name == "custom"
    trace = read(path, AT_FIVE_PER_S)
    assert [(r.input_length, r.output_length, r.estimated) for r in trace.requests] == [
        (18, 10, True), (18, 152, True),
    ]  # fmt: skip
    assert trace.requests[0].timestamp_ms == 0 < trace.requests[1].timestamp_ms
    assert trace.meta.prefixes == "estimated"
    assert trace.requests[0].hash_ids == trace.requests[1].hash_ids
    assert trace.meta.source == (
        "log.jsonl; lengths estimated at 4 characters a token; arrivals made, 5/s, seed 0"
    )
    sentences = trace.notes.sentences()
    assert sentences[1].startswith("Lengths of texts are estimates")
    assert "Rows without prompt or output tokens, left out: 2." in sentences
    assert "Requests with a length that was estimated: 2." in sentences


def test_a_tokenizer_counts_the_lengths(tmp_path: Path) -> None:
    options = ReadOptions(rate_per_s=5.0, tokenizer=str(word_tokenizer(tmp_path)))
    trace = read(json_lines(tmp_path, *ROWS), options)
    assert [r.input_length for r in trace.requests] == [36, 36]
    assert trace.meta.prefixes == "known"
    assert trace.meta.block_size == 16
    assert trace.notes.estimated == 0


def test_the_same_file_gives_the_same_trace(tmp_path: Path) -> None:
    path = json_lines(tmp_path, *ROWS)
    assert read(path, AT_FIVE_PER_S).sha256 == read(path, AT_FIVE_PER_S).sha256


def test_without_a_rate_there_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a data set of prompts has no times"):
        read(json_lines(tmp_path, *ROWS))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "SECRET"}, "output_tokens: field required"),
        ({"prompt": None, "output_tokens": 1}, "prompt: field required"),
        ({"prompt": ["SECRET"], "output_tokens": 1}, "prompt: is a list, not a text"),
        ({"prompt": "SECRET", "output_tokens": "SECRET"}, "output_tokens: is a text of 6"),
    ],
)
def test_a_bad_row_is_named_and_not_quoted(tmp_path: Path, row: Row, reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(json_lines(tmp_path, ROWS[0], row, row), AT_FIVE_PER_S)
    assert f"log.jsonl:2: {reason}" in caught.value.message
    assert "2 of 3 lines cannot be read" in caught.value.message
    assert "SECRET" not in caught.value.message + caught.value.hint
