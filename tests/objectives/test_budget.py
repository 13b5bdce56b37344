from __future__ import annotations

import pytest

from objectives.budget import is_feasible, latency_objectives, margins, resolve, upper_margins
from objectives.errors import ObjectiveError
from objectives.limits import Budget, parse_budget
from objectives.statistics import Interval

INF = float("inf")


def test_resolve_multiplies_the_baseline() -> None:
    budget = resolve(parse_budget("ttft_p95:0.5x tpot_p95:40"), {"ttft_p95": 1000.0})
    assert budget.text == "ttft_p95:500 tpot_p95:40"


@pytest.mark.parametrize(("baseline_ms", "kept"), [(1000.0, "800"), (100.0, "90")])
def test_resolve_keeps_the_stricter_of_both_kinds(baseline_ms: float, kept: str) -> None:
    budget = parse_budget("ttft_p95:800 tpot_p95:40 ttft_p95:0.9x")
    resolved = resolve(budget, {"ttft_p95": baseline_ms})
    assert resolved.text == f"ttft_p95:{kept} tpot_p95:40"


@pytest.mark.parametrize("value", [None, INF, 0.0])
def test_resolve_needs_a_baseline(value: float | None) -> None:
    with pytest.raises(ObjectiveError, match="the baseline has no ttft_p95"):
        resolve(parse_budget("ttft_p95:0.9x"), {"ttft_p95": value})


def test_margins_are_relative_to_the_limit() -> None:
    budget = parse_budget("ttft_p95:800 tpot_p95:40 itl_p99:60 e2e_p95:9000")
    found = margins(budget, {"ttft_p95": 880.0, "tpot_p95": 40.0, "itl_p99": INF, "e2e_p95": None})
    assert found == {
        "ttft_p95": pytest.approx(0.1),
        "tpot_p95": 0.0,
        "itl_p99": INF,
        "e2e_p95": None,
    }


def test_margins_ask_for_a_resolved_budget() -> None:
    with pytest.raises(ObjectiveError, match="not measured yet"):
        margins(parse_budget("ttft_p95:0.9x"), {"ttft_p95": 1.0})


def test_upper_margins_ask_it_of_the_upper_bound() -> None:
    budget = parse_budget("ttft_p95:800 tpot_p95:40 itl_p99:60")
    bounds = {"ttft_p95": Interval(700.0, 840.0), "tpot_p95": Interval(30.0, None)}
    assert upper_margins(budget, bounds) == {
        "ttft_p95": pytest.approx(0.05),
        "tpot_p95": None,
        "itl_p99": None,
    }


@pytest.mark.parametrize(
    ("ttft", "failed", "feasible"),
    [(800.0, 0, True), (800.1, 0, False), (700.0, 1, False), (INF, 0, False), (None, 0, False)],
)
def test_feasible_keeps_every_limit_without_failures(
    ttft: float | None, failed: int, feasible: bool
) -> None:
    budget = parse_budget("ttft_p95:800 tpot_p95:40")
    assert is_feasible(budget, {"ttft_p95": ttft, "tpot_p95": 40.0}, failed) is feasible


def test_without_limits_only_failures_count() -> None:
    assert is_feasible(Budget(), {}, 0)
    assert not is_feasible(Budget(), {}, 1)


@pytest.mark.parametrize(
    ("text", "objectives"),
    [
        ("", ("ttft_p95", "tpot_p95")),
        ("itl_p99@short:60 tpot_p95:40 e2e_p90:9000 ttft_p95:800", ("e2e_p90", "itl_p99@short")),
        ("tpot_p99:0.9x", ("ttft_p95", "tpot_p99")),
    ],
)
def test_objectives_are_the_first_line_of_each_family(
    text: str, objectives: tuple[str, str]
) -> None:
    assert latency_objectives(parse_budget(text)) == objectives
