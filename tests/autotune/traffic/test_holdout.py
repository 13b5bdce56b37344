from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TraceError
from autotune.traffic.holdout import Holdout
from autotune.traffic.model import ReadNotes, Trace, TraceRequest


def trace_of(arrivals_ms: list[float]) -> Trace:
    requests = [TraceRequest(ms, 10 + n, 4, (n,)) for n, ms in enumerate(arrivals_ms)]
    notes = ReadNotes(remarks=("Lengths were estimated.",))
    return Trace.build(requests, block_size=16, prefixes_known=True, source="t", notes=notes)


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 10_000_000), min_size=1, max_size=40),
    st.integers(1, 50),
)
def test_every_request_is_in_one_part_at_its_time(arrivals: list[int], percent: int) -> None:
    trace = trace_of([0.0, *(each / 1000 for each in arrivals)])
    first, last = Holdout(f"{percent}%").split(trace)
    cut_s = trace.duration_s * (1 - percent / 100)
    assert first.duration_s < cut_s
    joined = [*first.requests, *last.requests]
    assert [each.hash_ids for each in joined] == [each.hash_ids for each in trace.requests]
    assert first.requests == trace.requests[: len(first.requests)]
    assert last.duration_s == pytest.approx(trace.duration_s - cut_s, abs=1e-5)
    assert last.timestamps_s[0] >= 0
    assert first.notes.remarks == last.notes.remarks == trace.notes.remarks


def test_the_share_is_of_time_and_not_of_requests() -> None:
    first, last = Holdout("25%").split(trace_of([0, 100, 200, 9_000, 10_000]))
    assert (len(first.requests), len(last.requests)) == (3, 2)
    assert list(last.timestamps_s) == pytest.approx([1.5, 2.5])


@pytest.mark.parametrize("arrivals", [[0.0], [0.0, 0.0], [700.0, 1000.0]])
def test_nothing_before_what_is_held_out_is_refused(arrivals: list[float]) -> None:
    with pytest.raises(TraceError, match="--holdout 50%: no request of t arrives before"):
        Holdout("50%").split(trace_of(arrivals))


def test_the_share_in_words() -> None:
    assert (Holdout("12.5%").share, Holdout("12.5%").words) == (0.125, "12.5 %")
