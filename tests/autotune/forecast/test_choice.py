from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.forecast.choice import OPTIMISTIC, Outlook, look
from autotune.forecast.goal import Goal
from autotune.forecast.residuals import Corrected
from objectives.arrays import F8
from objectives.limits import parse_budget

KEYS = ("ttft_p95", "tpot_p95", "utilization")
GOAL = Goal.of(parse_budget("ttft_p95:400"), KEYS, KEYS)


def corrected(ttft_ms: list[float], sigma: float | list[float] = 0.02) -> Corrected:
    """Cells that differ in TTFT alone."""
    logs = np.log([[ttft, 10.0, 0.5] for ttft in ttft_ms])
    own = np.full(len(ttft_ms), sigma) if isinstance(sigma, float) else np.array(sigma)
    return Corrected(logs, np.tile(own[:, np.newaxis], (1, len(KEYS))), trust=0.9)


def looked(found: Corrected, measured: list[int], *, seed: int = 0) -> Outlook:
    return look(found, GOAL, measured=np.array(measured, dtype=np.int64), seed=seed)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    sigma=st.sampled_from([0.01, 0.1, 0.7]),
    data=st.data(),
)
def test_the_best_was_measured_and_no_cell_improves_on_it_by_less_than_nothing(
    seed: int, count: int, sigma: float, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    logs: F8 = np.log([400.0, 10.0, 0.5]) + rng.normal(0, 1, (count, len(KEYS)))
    found = Corrected(logs, np.full_like(logs, sigma), trust=0.7)
    measured = data.draw(st.lists(st.integers(0, count - 1), min_size=1))
    outlook = looked(found, measured, seed=seed)
    assert outlook.best in measured
    assert outlook.expected[outlook.best] == outlook.expected[measured].min()
    assert (outlook.improvement >= 0).all()
    assert outlook.trust == 0.7
    np.testing.assert_array_equal(
        outlook.hopeless, logs[:, 0] - OPTIMISTIC * sigma > np.log(2 * 400)
    )


def test_a_cell_that_was_forecast_to_be_best_is_not_the_best_before_it_was_measured() -> None:
    outlook = looked(corrected([100.0, 200.0, 300.0]), [1, 2])
    assert outlook.best == 1
    assert np.argmin(outlook.expected) == 0
    assert np.argmax(outlook.improvement) == 0


def test_before_anything_was_measured_there_is_no_best() -> None:
    outlook = looked(corrected([100.0, 200.0]), [])
    assert outlook.best is None


def test_of_equal_forecasts_the_one_less_known_may_improve_more() -> None:
    outlook = looked(corrected([200.0, 200.0, 200.0], [0.02, 0.02, 0.2]), [0])
    assert outlook.improvement[2] > 3 * outlook.improvement[1] > 0


def test_a_cell_that_is_known_to_be_worse_improves_nothing() -> None:
    outlook = looked(corrected([100.0, 390.0, 700.0]), [0])
    assert outlook.improvement[1:].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("ttft_ms", "sigma", "hopeless"),
    [(790.0, 0.001, False), (810.0, 0.001, True), (810.0, 0.1, False), (390.0, 0.001, False)],
)
def test_only_twice_the_budget_is_hopeless_even_to_an_optimist(
    ttft_ms: float, sigma: float, hopeless: bool
) -> None:
    outlook = looked(corrected([100.0, ttft_ms], sigma), [0])
    assert outlook.hopeless.tolist() == [False, hopeless]


def test_requests_that_never_end_are_hopeless() -> None:
    outlook = looked(corrected([100.0, np.inf]), [0])
    assert outlook.hopeless.tolist() == [False, True]
    assert outlook.improvement[1] == 0


def test_doubt_is_of_cells_next_to_a_limit_on_either_side() -> None:
    doubts = looked(corrected([100.0, 300.0, 398.0, 402.0, 600.0], 0.05), [1]).doubts
    assert doubts[[0, 1, 4]].max() < 0.01
    assert doubts[2:4].min() > 0.1


def test_the_same_seed_gives_the_same_outlook() -> None:
    found = corrected([100.0, 200.0, 390.0], 0.1)
    one, same, other = (looked(found, [1], seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.improvement, same.improvement)
    assert (one.improvement != other.improvement).any()
