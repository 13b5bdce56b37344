from __future__ import annotations

import math

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.forecast.forecast_words import (
    Row,
    at_load_line,
    judged_line,
    load_line,
    metrics_line,
    percent,
    table,
    trust_line,
)

KNOWN = {"ttft_p95": (90.0, 100.0, 111.4), "itl_p99": (8.123, 9.0, 9.99)}
NEVER = {"ttft_p95": (math.inf,) * 3, "itl_p99": (math.nan,) * 3}
ROWS: list[Row] = [
    ({TOKENS: 2048, SEQS: 128}, KNOWN, 0.996, "measured"),
    ({TOKENS: 512, SEQS: 8}, NEVER, None, "forecast"),
]


def test_a_table_lines_up_and_says_what_was_measured() -> None:
    assert table(ROWS) == [
        "tokens/seqs         ttft_p95           itl_p99  keeps budget",
        "   2048/128  100 (90 to 111)  9 (8.12 to 9.99)         >99 %  measured",
        "      512/8       never ends                 -             -  forecast",
    ]


@pytest.mark.parametrize(
    ("probability", "short", "long"),
    [
        (0.0, "<1 %", "less than 1 %"),
        (0.009, "<1 %", "less than 1 %"),
        (0.01, "1 %", "1 %"),
        (0.99, "99 %", "99 %"),
        (1.0, ">99 %", "more than 99 %"),
    ],
)
def test_no_forecast_is_certain(probability: float, short: str, long: str) -> None:
    assert (percent(probability, short=True), percent(probability)) == (short, long)


def test_nothing_makes_no_table() -> None:
    assert table([]) == []


def test_a_further_knob_has_a_column_of_its_own() -> None:
    rows: list[Row] = [
        ({TOKENS: 512, SEQS: 8, THRESHOLD: threshold}, KNOWN, 0.5, "forecast")
        for threshold in (0, 256)
    ]
    head, *lines = table(rows)
    assert head.split()[:2] == ["tokens/seqs", THRESHOLD]
    assert [line.split()[:2] for line in lines] == [["512/8", "0"], ["512/8", "256"]]


def test_metrics_in_one_line() -> None:
    assert metrics_line(KNOWN) == "ttft_p95 100 (90 to 111), itl_p99 9 (8.12 to 9.99)"


def test_metrics_at_a_load_have_units() -> None:
    found = {"ttft_p95": 1234.5, "itl_p99": 12.345, "e2e_p95": math.inf, "tpot_p95": None}
    assert at_load_line(2.0, found, None) == (
        "At 2 times today's traffic: ttft_p95 1234 ms, itl_p99 12.3 ms, e2e_p95 never ends, "
        "tpot_p95 -."
    )
    assert at_load_line(1.5, {"utilization": 0.314}, None).endswith(": utilization 31 %.")
    rate = at_load_line(1.5, {"tokens_per_busy_s": 4321.0}, None)
    assert rate.endswith(": tokens_per_busy_s 4321 tokens/s.")


@pytest.mark.parametrize(
    ("broken", "verdict"),
    [
        ([], "the budget is kept."),
        (["ttft_p95"], "ttft_p95 breaks the budget."),
        (["ttft_p95", "itl_p99"], "ttft_p95 and itl_p99 break the budget."),
        (["a", "b", "c"], "a, b and c break the budget."),
    ],
)
def test_a_verdict_at_a_load(broken: list[str], verdict: str) -> None:
    line = at_load_line(2.0, {"ttft_p95": 240.0}, broken)
    assert line == f"At 2 times today's traffic: ttft_p95 240 ms: {verdict}"


def test_what_a_table_is_about() -> None:
    assert judged_line("ttft_p95:500 itl_p99:60") == (
        "At today's traffic, judged by ttft_p95:500 itl_p99:60:"
    )
    assert judged_line("") == "At today's traffic, without a budget to judge by:"


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        (
            0.0,
            (
                "Measurements contradict these forecasts",
                "(probability that they are of use: less than 1 %",
            ),
        ),
        (0.49, ("contradict", "49 %")),
        (0.5, ("Ranges hold what 9 of 10 candidates do", "50 %")),
        (1.0, ("Ranges hold", "more than 99 %")),
    ],
)
def test_how_far_forecasts_are_trusted(trust: float, words: tuple[str, ...]) -> None:
    line = trust_line(trust)
    assert all(each in line for each in words)
    assert line.endswith(".")


@pytest.mark.parametrize(
    ("load", "line"),
    [
        (None, "The budget is not kept at today's traffic."),
        (1.0, "The budget holds today's traffic and no more."),
        (1.04, "The budget holds today's traffic and no more."),
        (1.06, "The budget holds up to 1.1 times today's traffic."),
        (1.68, "The budget holds up to 1.7 times today's traffic."),
        (4.0, "The budget holds at 4 times today's traffic; more was not simulated."),
    ],
)
def test_up_to_which_load_a_budget_is_kept(load: float | None, line: str) -> None:
    assert load_line(load, 4.0) == line
