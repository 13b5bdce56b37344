from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect
from autotune.traffic.formats.bailian import read
from tests.autotune.traffic.formats.files import Row, json_lines


def row(**fields: object) -> Row:
    return {
        "chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40,
        "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1, 2, 3], **fields,
    }  # fmt: skip


def test_seconds_and_blocks_of_16_tokens_are_read(tmp_path: Path) -> None:
    path = json_lines(
        tmp_path,
        row(),
        row(chat_id=160, parent_chat_id=159, timestamp=62.5, hash_ids=[1, 2, 9]),
        row(output_length=0),
        row(timestamp=63, hash_ids=[]),
    )
    assert detect(path).name == "bailian"
    trace = read(path)
    assert trace.timestamps_s.tolist() == [0.0, 1.386, 1.886]
    assert [r.hash_ids for r in trace.requests] == [(1, 2, 3), (1, 2, 9), (10, 11, 12)]
    assert trace.meta.block_size == 16
    assert trace.meta.prefixes == "known"
    assert trace.notes.without_tokens == 1
    assert trace.notes.without_ids == 1
    assert "seconds from the file's own zero" in trace.notes.sentences()[0]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"hash_ids": [1, 2]}, "hash_ids: 2 ids for 40 prompt tokens, blocks of 16 need 3"),
        ({"hash_ids": [1, 2, -3]}, "hash_ids: not all are whole numbers"),
        ({"hash_ids": [1, 2, "3"]}, "hash_ids: not all are whole numbers"),
        ({"input_length": None}, "input_length: field required"),
        ({"timestamp": None}, "timestamp: field required"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, bad: Row, reason: str) -> None:
    with pytest.raises(TraceError, match=rf"log\.jsonl:2: {reason}"):
        read(json_lines(tmp_path, row(), row(**bad)))
