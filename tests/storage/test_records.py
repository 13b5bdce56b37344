from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from storage.errors import StorageError
from storage.records import Outcome


@pytest.mark.parametrize(
    ("constraints", "feasible"),
    [({}, True), ({"ttft_p95": 0.0, "failed": -1.0}, True), ({"ttft_p95": 0.1}, False)],
)
def test_feasible_means_no_constraint_above_zero(
    constraints: Mapping[str, float], feasible: bool
) -> None:
    assert Outcome("complete", (1.0,), constraints).feasible is feasible


def test_a_failed_trial_shows_nothing_about_feasibility() -> None:
    assert Outcome("fail").feasible is None


def test_values_belong_to_complete_outcomes_only() -> None:
    with pytest.raises(StorageError, match="has values"):
        Outcome("complete")
    with pytest.raises(StorageError, match="has none"):
        Outcome("fail", (1.0,))


def test_nan_is_no_outcome() -> None:
    with pytest.raises(StorageError, match="not a number"):
        Outcome("complete", (math.nan,))
    with pytest.raises(StorageError, match="not a number"):
        Outcome("complete", (1.0,), {"ttft_p95": math.nan})
