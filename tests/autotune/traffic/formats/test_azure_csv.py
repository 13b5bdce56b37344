from __future__ import annotations

import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TraceError
from autotune.traffic.formats.azure_csv import read
from autotune.traffic.trace import load_trace
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


def test_the_multimodal_trace_of_2025_is_read_as_text_and_says_so(tmp_path: Path) -> None:
    trace = read(
        written(
            tmp_path,
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
            "2024-10-15T12:00:00.269Z,0,770,491",
            "2024-10-15T12:00:05.819Z,1,949,126",
            "2024-10-15T12:00:06.513Z,16,4564,137",
        )
    )
    assert [(r.input_length, r.output_length) for r in trace.requests] == [
        (770, 491), (949, 126), (4564, 137),
    ]  # fmt: skip
    assert trace.timestamps_s.tolist() == [0.0, 5.55, 6.244]
    assert trace.notes.sentences() == ["Requests with images, replayed as text: 2."]


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    path = written(
        tmp_path, "GeneratedTokens, TIMESTAMP ,ContextTokens", "44,2023-11-16 18:15:46,374"
    )
    assert (read(path).requests[0].input_length, read(path).requests[0].output_length) == (374, 44)


def test_windows_line_ends_blank_lines_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n\r\n{GOOD}\r\n\n".encode())
    assert read(path).meta.requests == 1


def test_what_is_no_header_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('{"prompt": "Is a hidden word in here, or not?"}\n')
    with pytest.raises(TraceError, match=r"unknown column$"):
        load_trace(path, format="azure")


@pytest.mark.parametrize(
    ("header", "reason", "hint"),
    [
        ("TIMESTAMP,ContextTokens", "the header lacks GeneratedTokens", "in any order"),
        (f"{HEADER},TIMESTAMP", "the header names TIMESTAMP twice", "in any order"),
        (f"{HEADER},Colour", "unknown column 'Colour'", "in any order"),
        ("TIMESTAMP,ContextTokns,GeneratedTokens", "'ContextTokns'", "mean 'ContextTokens'?"),
        (HEADER.replace(",", ";"), "unknown column 'TIMESTAMP;", ""),
        (f",{HEADER}", "unknown column ''", "in any order"),
        (GOOD, "the header is missing", f"put {HEADER} on the first line"),
    ],
)
def test_another_header_is_refused(tmp_path: Path, header: str, reason: str, hint: str) -> None:
    with pytest.raises(TraceError, match=rf"a\.csv:1: .*{re.escape(reason)}") as caught:
        load_trace(written(tmp_path, header, GOOD))
    assert hint in caught.value.hint


def test_all_bad_rows_are_counted(tmp_path: Path) -> None:
    lines = (HEADER, GOOD, "a,1,1", GOOD, "2023-11-16 18:15:46,x,1", "")
    with pytest.raises(TraceError) as caught:
        read(written(tmp_path, *lines))
    assert caught.value.message.endswith(
        "a.csv:3: TIMESTAMP: 'a' is no time; 2 of 4 lines cannot be read"
    )


STAMPS = st.datetimes(
    min_value=datetime(1971, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
)
COUNTS = st.integers(1, 10_000_000)


@settings(max_examples=40)
@given(st.lists(st.tuples(STAMPS, COUNTS, COUNTS), min_size=1, max_size=8), st.booleans())
def test_rows_are_read_as_they_were_written(
    rows: list[tuple[datetime, int, int]], offset: bool
) -> None:
    first = min(stamp for stamp, _, _ in rows)
    rows = [(first + (stamp - first) % timedelta(days=300), c, g) for stamp, c, g in rows]
    with tempfile.TemporaryDirectory() as folder:
        texts = [stamp.isoformat(" ") if offset else f"{stamp:%F %T.%f}" for stamp, _, _ in rows]
        lines = [f"{text},{c},{g}" for text, (_, c, g) in zip(texts, rows, strict=True)]
        trace = read(written(Path(folder), HEADER, *lines))
    expected = sorted(rows, key=lambda row: row[0])
    assert [(r.input_length, r.output_length) for r in trace.requests] == [
        (context, generated) for _, context, generated in expected
    ]
    assert trace.timestamps_s.tolist() == pytest.approx(
        [(stamp - first).total_seconds() for stamp, _, _ in expected], abs=1e-6
    )
    assert trace.meta.captured_at == first.isoformat()


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
        ("2023-11-16 18:15:46,374,٣", r"GeneratedTokens: '\\u0663' is no count"),
        ("2023-11-16 18:15:46,10000001,1", "ContextTokens: 10000001 is more than 10000000"),
        ("2023-11-16 18:15:46," + "9" * 5000 + ",1", "ContextTokens: 9{20} is more than"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(TraceError, match=rf"a\.csv:3: .*{reason}"):
        read(written(tmp_path, HEADER, GOOD, line, GOOD))
