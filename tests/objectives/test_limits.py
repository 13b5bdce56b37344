from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.classes import LengthClass
from objectives.errors import ObjectiveError
from objectives.limits import METRICS, Budget, Limit, check_classes, parse_budget
from objectives.statistics import AGGREGATES

positive = st.floats(1e-6, 1e9, allow_nan=False, allow_infinity=False)
limits = st.builds(
    lambda metric, aggregate, class_name, value, relative: Limit(
        metric,
        aggregate,
        class_name,
        limit_ms=None if relative else value,
        relative=value if relative else None,
    ),
    st.sampled_from(METRICS),
    st.sampled_from(AGGREGATES),
    st.sampled_from([None, "short", "long"]),
    positive,
    st.booleans(),
)
budgets = st.lists(
    limits, max_size=6, unique_by=lambda limit: (limit.key, limit.relative is None)
).map(lambda found: Budget(tuple(found)))


@given(budgets)
def test_text_reads_back(budget: Budget) -> None:
    assert parse_budget(budget.text) == budget


def test_parse_reads_all_forms() -> None:
    budget = parse_budget("ttft_p95:800, tpot_P95:40ms itl_p99@short:0.06s,e2e_max:1e4 tpot:0.9x")
    assert budget.limits == (
        Limit("ttft", "p95", None, limit_ms=800),
        Limit("tpot", "p95", None, limit_ms=40),
        Limit("itl", "p99", "short", limit_ms=60),
        Limit("e2e", "max", None, limit_ms=10_000),
        Limit("tpot", "p95", None, relative=0.9),
    )
    assert [limit.key for limit in budget.limits][:3] == ["ttft_p95", "tpot_p95", "itl_p99@short"]
    assert [limit.key for limit in budget.absolute] == [limit.key for limit in budget.limits[:4]]


def test_aliases_and_bare_metrics_are_as_vllm_writes_them() -> None:
    assert parse_budget("ttft:500 e2el:5000 tbt_p99:60").text == (
        "ttft_p95:500 e2e_p95:5000 itl_p99:60"
    )


def test_no_limits_are_a_budget() -> None:
    assert parse_budget("  ") == Budget()
    assert Budget().text == ""


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("tttf_p95:800", "unknown metric 'tttf'", "'ttft'"),
        ("ttft_p59:800", "unknown aggregate 'p59'", "did you mean"),
        ("ttft_p95:-5", "positive and finite, not -5", "leave the line out"),
        ("ttft_p95:0", "positive and finite, not 0", "leave the line out"),
        ("ttft_p95:nan", "positive and finite, not nan", "leave the line out"),
        ("ttft_p95:inf", "positive and finite, not inf", "leave the line out"),
        ("ttft_p95:1e999", "positive and finite", "leave the line out"),
        ("ttft_p95:0x", "positive and finite", "leave the line out"),
        ("ttft_p95:8 ttft:9", "limits ttft_p95 twice", "stricter"),
        ("ttft_p95:0.8x ttft_p95:0.9x", "limits ttft_p95 twice", "stricter"),
        ("ttft_p95:5min", "unknown unit 'min'", "use ms"),
        ("ttft_p95:fast", "'fast' in 'ttft_p95:fast' is no limit", "METRIC"),
        ("ttft_p95:1.2.3", "is no limit", "METRIC"),
        ("ttft_p95:\uff15\uff10\uff10", "is no limit", "METRIC"),
        ("ttft_p95:5e\u0662", "unknown unit", "use ms"),
        ("ttft_p95", "'ttft_p95' is no budget line", "METRIC"),
        ("ttft_p95:", "is no budget line", "METRIC"),
        ("itl_p99@:60", "no class after '@'", "METRIC"),
    ],
)
def test_parse_refuses(text: str, message: str, hint: str) -> None:
    with pytest.raises(ObjectiveError, match=message) as caught:
        parse_budget(text)
    assert hint in caught.value.hint


def test_a_limit_is_absolute_or_relative() -> None:
    with pytest.raises(ObjectiveError, match="needs one limit"):
        Limit("ttft", "p95")
    with pytest.raises(ObjectiveError, match="needs one limit"):
        Limit("ttft", "p95", limit_ms=1.0, relative=1.0)


def test_classes_must_exist() -> None:
    budget = parse_budget("itl_p99@shrot:60")
    with pytest.raises(ObjectiveError, match="no class 'shrot'") as caught:
        check_classes(budget, [LengthClass("short", 0, 2000)])
    assert caught.value.hint == "did you mean 'short'?"
    with pytest.raises(ObjectiveError) as caught:
        check_classes(budget, ())
    assert "--classes" in caught.value.hint
    check_classes(parse_budget("itl_p99@short:60"), [LengthClass("short", 0, 2000)])
