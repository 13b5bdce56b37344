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
