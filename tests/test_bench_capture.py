"""What the bench of captures makes of its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.bench_scripts import imported


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for scripts in imported(monkeypatch, ("capture",)):
        yield scripts["capture"]


def test_differences_are_those_of_percentiles(bench: ModuleType) -> None:
    ours, theirs = [float(each) for each in range(101)], [0.5] * 10
    assert bench.added(ours, theirs) == {"p50": 49.5, "p99": 98.5}


def test_the_result_says_what_each_way_adds(bench: ModuleType) -> None:
    none = bench.Arm("http://none", 1, 0.1, [10.0, 10.0], [30.0], [2000.0, 1900.0])
    proxy = bench.Arm("http://proxy", 1, 0.3, [11.0, 12.0], [30.5], [1950.0, 1950.0])
    row = json.loads(json.dumps(bench.result({"none": none, "proxy": proxy}, {"proxy": 7}, 2)))
    assert row["proxy"]["added_ttft_ms"]["p50"] == 1.5
    assert row["proxy"]["added_itl_ms"] == {"p50": 0.5, "p99": 0.5}
    assert (row["proxy"]["throughput_ratio"], row["proxy"]["recorded"]) == (1.0, 7)
    assert (row["none"]["cpu_ms_per_token"], row["proxy"]["cpu_ms_per_token"]) == (33.3333, 100.0)
    assert "added_ttft_ms" not in row["none"]
    assert row["requests_per_arm"] == 2 * bench.CONNECTIONS * bench.REQUESTS


def test_prompts_begin_alike_and_end_differently(bench: ModuleType) -> None:
    one, two = bench.body_of(0, 1, 2), bench.body_of(0, 1, 3)
    assert one != two
    assert one[:2000] == two[:2000]
    assert len(one) > bench.PROMPT_CHARACTERS
