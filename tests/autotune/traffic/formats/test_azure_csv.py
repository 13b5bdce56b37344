from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats.azure_csv import read
from tests.autotune.traffic.examples import AZURE_CONVERSATION

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:15:46.6805900,374,44"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.shared
def test_recorded_conversations() -> None:
    trace = read(AZURE_CONVERSATION)
    assert trace.meta.requests == 14176
    assert not trace.meta.prefixes_known
    assert trace.meta.captured_at == "2023-11-16T18:15:46.680590+00:00"
    assert [
        (r.timestamp_ms, r.input_length, r.output_length, r.hash_ids) for r in trace.requests[:3]
    ] == [(0.0, 374, 44, (0,)), (4314.579, 396, 109, (1,)), (4541.877, 879, 55, (2, 3))]
    assert trace.duration_s == 2399.96463
    assert not trace.notes.sentences()


def test_hundred_nanoseconds_are_kept(tmp_path: Path) -> None:
    trace = read(
        written(
            tmp_path,
            HEADER,
            "2023-11-16 18:15:46.0000001,1,1",
            "2023-11-16 19:15:46.1234567,1,1",
        )
    )
    assert [r.timestamp_ms for r in trace.requests] == [0.0, 3_600_123.4566]


def test_offsets_of_2024_are_read(tmp_path: Path) -> None:
    trace = read(
        written(
            tmp_path,
            HEADER,
            "2024-05-10 00:00:00.009930+00:00,2162,5",
            "2024-05-10 02:00:01+02:00,2399,6",
            "2024-05-10T00:00:02.5Z,76,15",
        )
    )
    assert [r.timestamp_ms for r in trace.requests] == [0.0, 990.07, 2490.07]
    assert trace.meta.captured_at == "2024-05-10T00:00:00.009930+00:00"


def test_rows_without_tokens_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read(
        written(
            tmp_path,
            HEADER,
            "2023-11-16 18:15:40,0,44",
            GOOD,
            "2023-11-16 18:15:47,12,0",
            "2023-11-16 18:15:47.6805900,600,7",
        )
    )
    assert [(r.timestamp_ms, r.hash_ids) for r in trace.requests] == [(0.0, (0,)), (1e3, (1, 2))]
    assert trace.notes.sentences() == ["Rows without prompt or output tokens, left out: 2."]


def test_nothing_but_rows_without_tokens_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.csv: no rows with prompt and output tokens"):
        read(written(tmp_path, HEADER, "2023-11-16 18:15:40,0,44"))


def test_another_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.csv:1: the header is not TIMESTAMP"):
        read(written(tmp_path, "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens", GOOD))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2023-11-16 18:15:46.6805900,374", "2 columns instead of 3"),
        (GOOD + ",1", "4 columns instead of 3"),
        ("yesterday,374,44", "TIMESTAMP: 'yesterday' is no time"),
        ("2023-13-16 18:15:46,374,44", "month must be in"),
        ("9999-12-31 23:59:59.999,374,44", "TIMESTAMP: .* is not of the years 1970 to 9997"),
        ("9999-12-31 23:59:59-14:00,374,44", "TIMESTAMP: .* is not of the years"),
        ("0001-01-01 00:00:00+14:00,374,44", "TIMESTAMP: .* is not of the years"),
        ("2023-11-16 18:15:46+99:00,374,44", "offset"),
        ("2023-11-16 18:15:46,-374,44", "ContextTokens: '-374' is no count"),
        ("2023-11-16 18:15:46,3.5,44", "ContextTokens: '3.5' is no count"),
        ("2023-11-16 18:15:46,374,", "GeneratedTokens: '' is no count"),
        ("2023-11-16 18:15:46,374,٣", "GeneratedTokens: '٣' is no count"),
        ("2023-11-16 18:15:46,10000001,1", "ContextTokens: 10000001 is more than 10000000"),
        ("2023-11-16 18:15:46," + "9" * 5000 + ",1", "ContextTokens: 9{20} is more than"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(TraceError, match=rf"a\.csv:3: .*{reason}"):
        read(written(tmp_path, HEADER, GOOD, line, GOOD))
