from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.study.costs import WORK_COST, gather_cells, replicate_noise
from autotune.study.drift import (
    DRIFT_LEAST,
    DRIFT_P,
    Steadiness,
    assess_steadiness,
    two_sided_p,
)
from objectives.limits import parse_budget
from objectives.statistics import student_t_95
from storage.records import TrialRecord
from tests.autotune.study.records import limits, record
from tests.autotune.study.scripted import BASELINE

NAMES = ("ttft_p95", "tpot_p95", WORK_COST)
BUDGET = parse_budget("ttft_p95:300 itl_p99:60")


def baseline(number: int, ttft_ms: float, *, live: bool = True, **changes: Any) -> TrialRecord:
    """A trial of the baseline that began at this minute of the study."""
    return measured(number, ttft_ms, live=live, phase="sentinel" if live else "confirm", **changes)


def measured(number: int, ttft_ms: float, *, live: bool = True, **changes: Any) -> TrialRecord:
    values = {
        "metrics": {"ttft_p95": ttft_ms, "tpot_p95": 10.0, "tokens_per_busy_s": 1000.0},
        "started_at": f"2026-11-01T10:{number:02}:00+00:00",
        "fidelity": "live" if live else "restart",
        "engine": {"kv_cache_tokens": 65536, "capture_sizes": [1, 2]},
    }
    return record(number, **{**values, **changes})


def assessed(trials: Sequence[TrialRecord]) -> Steadiness:
    cells = gather_cells(trials, BUDGET, NAMES)
    return assess_steadiness(
        trials,
        cells,
        budget=BUDGET,
        names=NAMES,
        baseline=BASELINE,
        noise=replicate_noise(cells),
    )


def test_restarts_alone_say_nothing() -> None:
    trials = [baseline(n, 100.0 + n, live=False) for n in range(5)]
    assert assessed(trials) == Steadiness()


def test_the_spread_of_sentinels() -> None:
    trials = [baseline(0, 50.0, live=False), baseline(1, 100.0), baseline(2, 110.0)]
    found = assessed(trials).spread
    assert found.keys() == {"ttft_p95", "tpot_p95", "tokens_per_busy_s"}
    assert found["ttft_p95"].sigma == pytest.approx(math.log(1.1) / math.sqrt(2))
    assert (found["ttft_p95"].trials, found["tpot_p95"].sigma) == (2, 0.0)


def test_work_is_looked_at_as_it_is_scored() -> None:
    shares = (0.51, 0.50, 0.52)
    trials = [
        measured(
            n,
            100.0,
            live=n > 0,
            phase="sentinel" if n else "baseline",
            metrics={"ttft_p95": 100.0, "tokens_per_busy_s": 1000.0, "utilization": share},
        )
        for n, share in enumerate(shares)
    ]
    found = assessed(trials).spread
    assert found.keys() == {"ttft_p95", "utilization"}
    assert found["utilization"].sigma == pytest.approx(math.log(1.04) / math.sqrt(2))


def test_one_sentinel_has_no_spread_and_two_have_no_trend() -> None:
    assert assessed([baseline(0, 9.0, live=False), baseline(1, 9.0)]).spread == {}
    trials = [baseline(n, 100.0, live=n > 1) for n in range(4)]
    assert assessed(trials).drift == {}


def test_a_steady_rise_is_a_drift() -> None:
    jitter = (1.0, 1.002, 0.999, 1.001)
    trials = [baseline(15 * n, 100 * math.exp(0.05 * n) * j) for n, j in enumerate(jitter)]
    # Restarts have a level of their own, and the same slope.
    trials += [baseline(n, 80 * math.exp(n / 300), live=False) for n in (0, 45)]
    trend = assessed(trials).drift["ttft_p95"]
    assert trend.flagged
    assert trend.change == pytest.approx(math.expm1(0.15), abs=0.02)
    assert trend.hours == 0.75
    assert trend.p < DRIFT_P


def test_noise_is_no_drift() -> None:
    trials = [baseline(10 * n, ttft) for n, ttft in enumerate((100, 120, 90, 115, 110))]
    assert not assessed(trials).drift["ttft_p95"].flagged


def test_what_is_certain_and_small_is_no_drift() -> None:
    trials = [baseline(10 * n, 100 * math.exp(0.01 * n)) for n in range(5)]
    trend = assessed(trials).drift["ttft_p95"]
    assert trend.p < DRIFT_P
    assert 0 < trend.change < DRIFT_LEAST
    assert not trend.flagged


def test_three_sentinels_flag_noise_no_more_often_than_they_say() -> None:
    rng = np.random.default_rng(1)
    flags = [
        assessed(
            [
                baseline(10 * n, 100 * math.exp(each))
                for n, each in enumerate(rng.normal(0, 0.1, 3))
            ]
        )
        .drift["ttft_p95"]
        .flagged
        for _ in range(300)
    ]
    assert np.mean(flags) < 3 * DRIFT_P


def test_live_against_restart() -> None:
    a = limits(512)
    trials = [
        measured(0, 100.0, live=False, candidate=a),
        measured(1, 102.0, live=False, candidate=a),
        measured(2, 130.0, candidate=a),
        measured(3, 132.0, candidate=a),
        measured(4, 90.0, candidate=limits(768)),
    ]
    (found,) = assessed(trials).faithfulness
    assert (found.candidate, found.restarts, found.lives) == (a, (0, 1), (2, 3))
    ttft = found.differences["ttft_p95"]
    assert ttft.change == pytest.approx(math.sqrt(130 * 132 / (100 * 102)) - 1)
    assert ttft.low is not None
    assert ttft.high is not None
    assert ttft.low < ttft.change < ttft.high
    assert ttft.beyond_noise
    assert found.differences["tpot_p95"].beyond_noise is False
    assert found.reasons == ("unknown",)


@pytest.mark.parametrize(
    ("engine", "reasons"),
    [
        ({"kv_cache_tokens": 60000, "capture_sizes": [1, 2]}, ("kv_cache_tokens",)),
        ({"kv_cache_tokens": 65536, "capture_sizes": [1]}, ("capture_sizes",)),
        ({"kv_cache_tokens": 1, "capture_sizes": []}, ("kv_cache_tokens", "capture_sizes")),
    ],
)
def test_why_live_may_differ(engine: dict[str, Any], reasons: tuple[str, ...]) -> None:
    trials = [
        *(baseline(n, ttft, live=False) for n, ttft in enumerate((100.0, 101.0))),
        *(baseline(n, ttft, engine=engine) for n, ttft in ((2, 150.0), (3, 151.0))),
    ]
    (found,) = assessed(trials).faithfulness
    assert found.reasons == reasons


def test_without_noise_nothing_is_beyond_it() -> None:
    (found,) = assessed([baseline(0, 100.0, live=False), baseline(1, 150.0)]).faithfulness
    ttft = found.differences["ttft_p95"]
    assert ttft.change == pytest.approx(0.5)
    assert (ttft.low, ttft.high, ttft.beyond_noise) == (None, None, None)
    assert found.reasons == ()


@given(st.floats(0, 5), st.integers(1, 60))
def test_p_falls_with_distance(t: float, degrees: int) -> None:
    assert 0 <= two_sided_p(t + 0.1, degrees) < two_sided_p(t, degrees) <= 1
    assert two_sided_p(t, degrees) == two_sided_p(-t, degrees)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10, 31])
def test_p_agrees_with_the_table(degrees: int) -> None:
    assert two_sided_p(student_t_95(degrees), degrees) == pytest.approx(0.1, abs=1e-4)
