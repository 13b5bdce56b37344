from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats.native import read
from tests.autotune.traffic.examples import MOONCAKE

GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}'


def written(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
    )
    return path


def row(**changes: Any) -> str:
    return json.dumps({**json.loads(GOOD), **changes})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD[:40], "EOF while parsing"),
        (b"\xff" + GOOD.encode(), "not UTF-8 at byte 1"),
        ("17", "object"),
        (row(input_length=0), "input_length: must be at least 1"),
        (row(input_length=-5), "input_length: must be at least 1"),
        (row(input_length=10_000_001), "input_length: must be at most"),
        (row(input_length=6.5), "input_length: must be a whole number"),
        (row(input_length="600"), "input_length: must be a whole number"),
        (row(output_length=0), "output_length: must be at least 1"),
        (row(output_length=True), "output_length: must be a whole number"),
        (row(timestamp=float("nan")), "timestamp: must be a finite number"),
        (row(timestamp=float("inf")), "timestamp: must be a finite number"),
        (row(timestamp=-1), "timestamp: must be at least 0"),
        (row(timestamp="0"), "timestamp: must be a number"),
        (row(hash_ids=[1, -2]), r"hash_ids\.1: must be at least 0"),
        (row(hash_ids=[1, 2**63]), r"hash_ids\.1: must be at most"),
        (row(hash_ids=[1]), "hash_ids: 1 ids for 600 prompt tokens, blocks of 512 need 2"),
        (row(hash_ids=[]), "hash_ids: 0 ids for 600 prompt tokens"),
        (row(priority=2**31), "priority: must be at most 2147483647"),
        (row(priority=-(2**31) - 1), "priority: must be at least -2147"),
        (row(priority=10**40), "priority: "),
        (row(max_tokens=10**40), "max_tokens: "),
        (row(cached_tokens=10**40), "cached_tokens: "),
        (row(input_length=10**40), "input_length: "),
        (row(output_length=10**40), "output_length: "),
        (row(timestamp=10**400), "timestamp: "),
        (row(colour="red"), "unknown field 'colour'"),
        ('{"timestamp": 0, "input_length": 600}', "output_length: field required"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str | bytes, reason: str) -> None:
    path = written(tmp_path, GOOD, "", GOOD, line, GOOD)
    with pytest.raises(TraceError, match=rf"a\.jsonl:4: .*{reason}"):
        read(path)


def test_a_row_cut_off_at_the_end_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.jsonl:2: "):
        read(written(tmp_path, GOOD, GOOD[:-1]))


def test_windows_line_ends_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    trace = read(written(tmp_path, b"\xef\xbb\xbf" + GOOD.encode() + b"\r", GOOD + "\r", ""))
    assert trace.meta.requests == 2


def test_one_request_is_a_trace(tmp_path: Path) -> None:
    trace = read(written(tmp_path, GOOD))
    assert (trace.meta.requests, trace.duration_s) == (1, 0.0)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256, 512, 1024])
def test_block_size_is_inferred(tmp_path: Path, block_size: int) -> None:
    rows = [
        row(input_length=tokens, hash_ids=list(range(-(-tokens // block_size))))
        for tokens in (40, 700, 2500, 9999)
    ]
    trace = read(written(tmp_path, *rows))
    assert trace.meta.block_size == block_size
    assert trace.meta.prefixes_known


def test_rows_without_ids_get_fresh_ones(tmp_path: Path) -> None:
    bare = '{"timestamp": 5, "input_length": 1025, "output_length": 5}'
    trace = read(written(tmp_path, bare, GOOD, bare))
    assert [r.hash_ids for r in trace.requests] == [(1, 2), (3, 4, 5), (6, 7, 8)]
    # What is known of some rows is worth something, and of the others it is said.
    assert trace.meta.prefixes_known
    assert trace.notes.without_ids == 2
    assert "taken to share nothing: 2." in trace.notes.sentences()[1]
    alone = read(written(tmp_path, bare))
    assert not alone.meta.prefixes_known
    assert alone.notes.without_ids == 0
    assert (alone.requests[0].hash_ids, alone.meta.block_size) == ((0, 1, 2), 512)


def test_optional_fields_are_kept(tmp_path: Path) -> None:
    line = row(max_tokens=64, priority=-1, cached_tokens=512, model="llama")
    kept = read(written(tmp_path, line)).requests[0]
    assert (kept.max_tokens, kept.priority, kept.cached_tokens, kept.model) == (
        64,
        -1,
        512,
        "llama",
    )


def test_clock_time_counts_from_the_first_request(tmp_path: Path) -> None:
    clock_ms = 1_700_158_546_000
    trace = read(written(tmp_path, row(timestamp=clock_ms + 250), row(timestamp=clock_ms)))
    assert trace.timestamps_s.tolist() == [0.0, 0.25]
    assert trace.notes.sentences() == [
        "Rows out of order, now sorted by time: 1.",
        "Times were clock time; they now count from the first request.",
    ]


@pytest.mark.parametrize(
    ("times", "within_s"),
    [
        ([0.5, 30, 600], "0.6 s"),
        ([0.97 * each for each in range(11_000)], "10.7 s"),
        ([0, 20_000], None),
        ([7, 7, 7], None),
    ],
)
def test_times_that_may_be_seconds_are_doubted(
    tmp_path: Path, times: list[float], within_s: str | None
) -> None:
    notes = read(written(tmp_path, *(row(timestamp=each) for each in sorted(times)))).notes
    doubts = [each for each in notes.sentences() if "multiply times in seconds by 1000" in each]
    assert [f"within {within_s}:" in each for each in doubts] == [True] * (within_s is not None)


@pytest.mark.shared
def test_mooncake_is_read_as_it_is() -> None:
    trace = read(MOONCAKE)
    first = trace.requests[0]
    assert trace.meta.requests == 4000
    assert trace.meta.block_size == 512
    assert trace.meta.prefixes_known
    assert (first.timestamp_ms, first.input_length, first.output_length) == (0.0, 6758, 500)
    assert first.hash_ids == tuple(range(14))
    assert trace.duration_s == 1301.999
    assert not trace.notes.sentences()


def test_priorities_of_32_bits_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, row(priority=-(2**31)), row(priority=2**31 - 1))
    assert [each.priority for each in read(path).requests] == [-(2**31), 2**31 - 1]


def test_no_hash_ids_are_made_up_beyond_the_last(tmp_path: Path) -> None:
    bare = '{"timestamp": 0, "input_length": 600, "output_length": 5}'
    with pytest.raises(TraceError, match=r"a\.jsonl:2: hash_ids: missing"):
        read(written(tmp_path, row(hash_ids=[1, 2**63 - 1]), bare))


@pytest.mark.parametrize(
    ("first", "reason", "hint"),
    [
        (1_700_158_546, "comes 19.7 days after time zero", "multiply clock time in seconds"),
        (1_700_158_546_000_000, "is no time of today", "divide µs by 1e3"),
        (1_700_158_546_000_000_000, "is no time of today", "ns by 1e6"),
    ],
)
def test_clocks_of_another_unit_are_noticed(
    tmp_path: Path, first: int, reason: str, hint: str
) -> None:
    with pytest.raises(TraceError, match=rf"a\.jsonl: .*{reason}") as caught:
        read(written(tmp_path, row(timestamp=first), row(timestamp=first + 5)))
    assert hint in caught.value.hint


def test_hash_ids_that_do_not_fit_have_a_hint(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read(written(tmp_path, GOOD, row(hash_ids=[1])))
    assert caught.value.hint == "each block of the prompt has one id, the last one perhaps in part"
