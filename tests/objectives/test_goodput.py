from __future__ import annotations

import numpy as np
import pytest

from objectives.classes import parse_classes
from objectives.errors import ObjectiveError
from objectives.goodput import request_keeps
from objectives.limits import Budget, parse_budget
from objectives.samples import RequestSamples
from objectives.statistics import AGGREGATES, aggregate
from tests.objectives.builders import from_deliveries, random_samples

CLASSES = parse_classes("short:0-2000 long:2000-")


@pytest.fixture
def samples() -> RequestSamples:
    """TTFT 100, 300, 300, lost; TPOT 50, none, 20; one long prompt (row 2)."""
    return from_deliveries(
        [[0.1, 0.12, 0.2], [0.3], [0.3, 0.32], [0.1]],
        scheduled_s=[0.0] * 4,
        prompt_tokens=[10, 10, 5000, 10],
        failed=[False, False, False, True],
    )


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("", [True, True, True, False]),
        ("ttft:200", [True, False, False, False]),
        ("ttft_p50:200 ttft_p99:400", [True, True, True, False]),
        ("ttft@long:200", [True, True, False, False]),
        ("ttft:400 ttft@long:200", [True, True, False, False]),
        ("tpot:40", [False, True, True, False]),
        ("tpot:0.5x", [True, True, True, False]),
        ("e2e:250", [True, False, False, False]),
        ("itl_max:79", [False, True, True, False]),
        ("itl_mean:51 itl_max:100", [True, True, True, False]),
        ("itl_mean:49 itl_max:100", [False, True, True, False]),
    ],
)
def test_each_request_keeps_limits_for_itself(
    samples: RequestSamples, text: str, keeps: list[bool]
) -> None:
    assert request_keeps(parse_budget(text), samples, CLASSES).tolist() == keeps


def test_own_gaps_are_aggregated_as_the_pool_is() -> None:
    samples = random_samples(60, seed=3)
    for name in AGGREGATES:
        own = [aggregate(samples.gap_s[samples.gap_request == row], name) for row in range(60)]
        expected = [value is None or value * 1000 <= 40 for value in own]
        budget = parse_budget(f"itl_{name}:40")
        np.testing.assert_array_equal(request_keeps(budget, samples, ()), expected)


def test_unknown_class_is_refused(samples: RequestSamples) -> None:
    with pytest.raises(ObjectiveError, match="no class 'tiny'"):
        request_keeps(parse_budget("ttft@tiny:5"), samples, CLASSES)
    assert request_keeps(Budget(), samples, ()).sum() == 3
