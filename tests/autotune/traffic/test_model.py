from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import TraceError, UsageError
from autotune.traffic.model import Trace, TraceRequest, blocks_of
from tests.autotune.traffic.examples import request, trace


def test_line_leaves_out_what_is_unknown() -> None:
    plain = TraceRequest(1.5, 600, 3, (7, 8))
    full = TraceRequest(0.0, 1, 1, (0,), max_tokens=5, priority=0, cached_tokens=0, model="llama")
    assert plain.to_line() == (
        '{"timestamp":1.5,"input_length":600,"output_length":3,"hash_ids":[7,8]}'
    )
    assert full.to_line() == (
        '{"timestamp":0.0,"input_length":1,"output_length":1,"hash_ids":[0],'
        '"max_tokens":5,"priority":0,"cached_tokens":0,"model":"llama"}'
    )


def test_build_sorts_stably_and_counts_late_rows() -> None:
    built = trace(request(2.0), request(1.0, output=1), request(3.0), request(1.0, output=2))
    assert [(r.timestamp_ms, r.output_length) for r in built.requests] == [
        (1000.0, 1),
        (1000.0, 2),
        (2000.0, 10),
        (3000.0, 10),
    ]
    assert built.notes.reordered == 2
    assert built.notes.sentences() == ["Rows out of order, now sorted by time: 2."]


def test_build_refuses_no_requests_and_a_span_of_years() -> None:
    with pytest.raises(TraceError, match="no requests"):
        trace()
    with pytest.raises(TraceError, match="more than a year apart"):
        trace(request(0.0), request(1.7e9))


def test_sha256_is_that_of_the_lines() -> None:
    built = trace(request(0.0), request(1.0))
    assert built.sha256 == hashlib.sha256(b"".join(built.lines())).hexdigest()
    assert built.sha256 != trace(request(0.0), request(1.1)).sha256


def test_arrays_have_types_and_cannot_be_changed() -> None:
    built = trace(request(0.5, prompt=10, output=2), request(2.0, prompt=7, output=9))
    assert built.timestamps_s.dtype == np.float64
    assert built.input_lengths.dtype == built.output_lengths.dtype == np.int64
    assert built.timestamps_s.tolist() == [0.5, 2.0]
    assert built.duration_s == 2.0
    assert built.longest_request == 16
    with pytest.raises(ValueError, match="read-only"):
        built.input_lengths[0] = 1


def test_window_is_half_open_and_keeps_its_phase() -> None:
    built = trace(request(9.9), request(10.25), request(15.0), request(20.0))
    cut = built.window(10.0, 20.0)
    assert [r.timestamp_ms for r in cut.requests] == [250.0, 5000.0]
    assert cut.meta.requests == 2
    assert cut.meta.source == "test 10:20"


def test_window_does_not_show_the_noise_of_subtraction() -> None:
    cut = trace(TraceRequest(600_123.4567, 1, 1, (0,))).window(600.0, 900.0)
    assert cut.requests[0].timestamp_ms == 123.4567


def test_window_moves_the_capture_time() -> None:
    built = Trace.build(
        [request(0.0), request(70.0)],
        block_size=512,
        prefixes_known=False,
        source="test",
        captured_at="2023-11-16T18:15:46.680590+00:00",
    )
    assert built.window(60, 120).meta.captured_at == "2023-11-16T18:16:46.680590+00:00"


@pytest.mark.parametrize(("start_s", "end_s"), [(5.0, 5.0), (6.0, 5.0), (-1.0, 5.0)])
def test_window_without_length_is_refused(start_s: float, end_s: float) -> None:
    with pytest.raises(UsageError, match="window"):
        trace(request(0.0)).window(start_s, end_s)


def test_window_without_requests_is_refused() -> None:
    with pytest.raises(TraceError, match="no request between 5 s and 6 s") as caught:
        trace(request(0.0), request(4.0)).window(5.0, 6.0)
    assert caught.value.hint == "the trace ends at 4 s"


def test_busiest_counts_tokens_not_requests() -> None:
    built = trace(request(0.0), request(1.0), request(2.0), request(60.0, prompt=5000))
    assert built.busiest(10.0) == (60.0, 70.0)


def test_busiest_takes_the_earliest_of_equals() -> None:
    assert trace(request(3.0), request(8.0)).busiest(2.0) == (3.0, 5.0)


def test_busiest_of_no_length_is_refused() -> None:
    with pytest.raises(UsageError, match="no length"):
        trace(request(0.0)).busiest(0.0)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(1, 200),
)
def test_no_window_is_busier_than_the_busiest(
    rows: list[tuple[int, int]], length_quarters: int
) -> None:
    built = trace(*(request(at / 4, prompt=tokens, output=1) for at, tokens in rows))
    length_s = length_quarters / 4
    start_s, end_s = built.busiest(length_s)
    found = built.window(start_s, end_s)
    tokens_found = int((found.input_lengths + found.output_lengths).sum())
    for start in range(401):
        inside = [n + 1 for at, n in rows if start <= at < start + length_quarters]
        assert sum(inside) <= tokens_found


def test_blocks_are_rounded_up() -> None:
    assert [blocks_of(tokens, 512) for tokens in (1, 512, 513)] == [1, 1, 2]


def test_a_window_past_the_end_of_the_calendar_is_refused() -> None:
    built = Trace.build(
        [request(0.0), request(60.0)],
        block_size=512,
        prefixes_known=True,
        source="test",
        captured_at="9999-12-31T23:59:30+00:00",
    )
    with pytest.raises(TraceError, match="captured_at: 60 s after 9999-12-31T23:59:30"):
        built.window(60, 120)
