from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.traffic.window import Busiest, Span, WindowSpec, parse_window
from tests.autotune.traffic.examples import request, trace


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("600:900", Span(600.0, 900.0)),
        ("0:0.5", Span(0.0, 0.5)),
        ("10m:1h", Span(600.0, 3600.0)),
        ("busiest:10m", Busiest(600.0)),
        ("busiest:90s", Busiest(90.0)),
        ("busiest:45", Busiest(45.0)),
    ],
)
def test_parse(text: str, spec: WindowSpec) -> None:
    assert parse_window(text) == spec


@pytest.mark.parametrize(
    "text",
    ["busiest:" + "9" * 400, "0:" + "9" * 400,
     "", "600", "600:", ":900", "900:600", "5:5", "-1:5", "busiest", "busiest:", "busiest:0s",
     "busiest:1d", "quietest:10m", "nan:inf", "1:2:3"],
)  # fmt: skip
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_window(text)
    assert "busiest:10m" in caught.value.hint


def test_span_applies_as_written() -> None:
    built = trace(request(0.0), request(5.0), request(9.0))
    assert Span(4.0, 9.0).bounds(built) == (4.0, 9.0)
    assert Span(4.0, 9.0).apply(built).timestamps_s.tolist() == [1.0]


def test_busiest_applies_where_the_tokens_are() -> None:
    built = trace(request(0.0), request(5.0), request(5.5))
    assert Busiest(1.0).bounds(built) == (5.0, 6.0)
    assert Busiest(1.0).apply(built).timestamps_s.tolist() == [0.0, 0.5]


def test_a_window_far_beyond_the_end_says_so() -> None:
    built = trace(request(0.0), request(634.2))
    assert Span(600.0, 900.0).apply(built).notes.sentences() == [
        "The window ends at 900 s, the trace at 634.2 s."
    ]
    assert Busiest(900.0).apply(built).notes.sentences() == [
        "The window ends at 900 s, the trace at 634.2 s."
    ]
    assert Span(0.0, 635.0).apply(built).notes.sentences() == []


def test_a_window_keeps_what_reading_changed() -> None:
    built = trace(request(5.0), request(0.0))
    assert Span(0.0, 5.01).apply(built).notes.sentences() == [
        "Rows out of order, now sorted by time: 1."
    ]


def test_one_request_has_windows() -> None:
    built = trace(request(0.0))
    for spec in (Span(0.0, 1.0), Busiest(60.0)):
        assert spec.apply(built).requests == built.requests
