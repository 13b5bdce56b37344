"""The metrics of a trial, on screens of several widths."""

from __future__ import annotations

import pytest

from autotune.cli.metric_table import metric_lines

AGGREGATES = ("mean", "p50", "p90", "p95", "p99", "max")
METRICS = {
    **{f"itl_{each}": 10.0 + n for n, each in enumerate(AGGREGATES)},
    **{f"ttft_{each}@short": 100.0 + n for n, each in enumerate(AGGREGATES)},
    **{f"ttft_{each}": 1000.0 + n for n, each in enumerate(AGGREGATES)},
    "tokens_per_busy_s": 10645.789,
    "goodput": None,
}
INTERVALS = {"ttft_p95": (1000.0, 1050.0), "itl_p95": (9.0, None)}


def test_a_wide_screen_has_all_aggregates_and_the_bound() -> None:
    lines = metric_lines(METRICS, INTERVALS, width=94)
    assert lines[0].split() == ["ms", *AGGREGATES, "p95", "<="]
    assert [line.split()[0] for line in lines[1:4]] == ["ttft", "itl", "ttft@short"]
    assert lines[1].split()[-1] == "1050.0"
    assert lines[2].split()[-1] == lines[3].split()[-1] == "-"
    assert lines[4:] == [
        "goodput                          - requests/s",
        "tokens_per_busy_s        10645.789 tokens/s",
    ]


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (93, AGGREGATES),
        (60, AGGREGATES),
        (50, ("p50", "p95", "p99", "max")),
        (40, ("p95", "p99", "max")),
        (12, ("p95",)),
    ],
)
def test_what_is_missed_least_is_left_out(width: int, heads: tuple[str, ...]) -> None:
    lines = metric_lines(METRICS, INTERVALS, width=width)
    assert lines[0].split() == ["ms", *heads, "p95", "<="]
    assert len({len(line) for line in lines[:4]}) == 1
    assert len(lines[0]) <= max(width, 24)
    assert lines[-1] == "tokens_per_busy_s 10645.789 tokens/s"


def test_utilization_is_told_where_there_is_one() -> None:
    assert "utilization" not in "".join(
        metric_lines({**METRICS, "utilization": None}, {}, width=94)
    )
    lines = metric_lines({**METRICS, "utilization": 0.25}, {}, width=40)
    assert lines[-1] == "utilization 0.250 of the best FLOP/s"


def test_without_latencies_there_is_nothing() -> None:
    assert metric_lines({}, {}, width=94) == []
