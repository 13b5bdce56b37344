from __future__ import annotations

import io
import math
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.cli.tables import (
    budget_text,
    console,
    duration,
    figure,
    limits,
    plain_line,
    ruled,
    written,
)
from objectives.limits import parse_budget


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 1, "-"),
        (math.inf, 1, "inf"),
        (12.345, 1, "12.3"),
        (0.5, 0, "0"),
        (3.0, 2, "3.00"),
        (0.0, 1, "0.0"),
        (0.5, 1, "0.5"),
        (0.996, 1, "1.0"),
        (0.149, 1, "0.15"),
        (0.03, 1, "0.03"),
        (0.0349, 1, "0.035"),
        (-0.0349, 1, "-0.035"),
        (0.0349, 3, "0.035"),
        (2e-9, 1, "2.0e-09"),
    ],
)
def test_figures(value: float | None, digits: int, text: str) -> None:
    assert figure(value, digits) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (99.4, "99 s"),
        (100.0, "2 min"),
        (48 * 60.0, "48 min"),
        (5990.0, "1 h 40 min"),
        (4.5 * 3600, "4 h 30 min"),
    ],
)
def test_times_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_candidates_in_few_characters() -> None:
    assert limits({TOKENS: 2048, SEQS: 64}) == "2048/64"
    assert limits({"block_size": 32, SEQS: 64, TOKENS: 2048}) == "2048/64 block_size=32"


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_are_written_as_they_are_given(kind: Any) -> None:
    assert limits({TOKENS: 2048, SEQS: 64, "x": kind([1, 2, 4])}) == "2048/64 x=[1,2,4]"
    assert written(kind(range(8))) == "[0,1,2,3,4,5,6,7]"
    assert written(kind(range(1, 52))) == "[1,2,…,51; 51 values]"
    assert written(kind([])) == "[]"


def test_a_budget_has_no_more_digits_than_count() -> None:
    for text in ("ttft_p95:800 itl_p99@short:12.345", "ttft_p95:0.9x", "ttft_p95:1234567", ""):
        assert budget_text(parse_budget(text)) == text
    worked_out = parse_budget("itl_p99:51.47683446792943 ttft_max:1234.5678901234567")
    assert budget_text(worked_out) == "itl_p99:51.4768 ttft_max:1234.57"


def test_a_table_without_room_is_a_block_for_each_row() -> None:
    rows = [("night", "finished, simulated", "8 complete"), ("a", "new", "-")]
    table = [
        "study  state                trials",
        "─" * 38,
        "night  finished, simulated  8 complete",
        "a      new                  -",
    ]
    assert ruled(("study", "state", "trials"), rows, width=38) == table
    assert ruled(("study", "state", "trials"), rows, width=20) == [
        "night",
        "  state finished,",
        "    simulated",
        "  trials 8 complete",
        "a",
        "  state new",
        "  trials -",
    ]


def test_no_name_drives_the_terminal() -> None:
    assert plain_line("a\x1b[31mb\r\nc\u202e") == "a\ufffd[31mb\ufffd\ufffdc\ufffd"
    assert plain_line("Größe 模型") == "Größe 模型"


def test_a_pipe_is_wide_enough_for_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console(io.StringIO()).width == 120
    monkeypatch.setenv("COLUMNS", "70")
    assert console(io.StringIO()).width == 70
