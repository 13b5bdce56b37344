from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.forecast.calibration import Calibration
from autotune.forecast.expected import Curve, StepTimes
from objectives.steps import Steps
from tests.autotune.forecast.builders import CAPTURE_SIZES, FakeEngine, plan


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return Calibration.measured(FakeEngine().sweep(plan()), capture_sizes=CAPTURE_SIZES)


def test_steps_that_the_sweep_has_not_seen_are_expected_within_four_per_cent(
    calibration: Calibration,
) -> None:
    engine = FakeEngine(noise=0)
    rng = np.random.default_rng(1)
    for _ in range(200):
        context = int(rng.integers(0, 8000))
        decodes = int(rng.integers(1, 200))
        kv = decodes * int(rng.integers(100, 2000))
        engine.step(prefill=int(rng.integers(16, 8000)), context=context, decodes=decodes, kv=kv)
        engine.step(decodes=decodes, kv=kv)
        engine.step(prefill=int(rng.integers(16, 300)), context=context, decodes=decodes, kv=kv)
    steps = Steps.from_rows(np.array(engine.rows))
    times = StepTimes.of(calibration)
    assert times is not None
    off = times.expected_s(steps) / (steps.done_s - steps.begun_s) - 1
    assert np.median(np.abs(off)) < 0.01
    assert np.max(np.abs(off)) < 0.08


def test_beyond_the_sweep_times_go_on_rising(calibration: Calibration) -> None:
    engine = FakeEngine(noise=0)
    for size in (16384, 24000, 32000):
        engine.step(prefill=size)
    steps = Steps.from_rows(np.array(engine.rows))
    times = StepTimes.of(calibration)
    assert times is not None
    assert times.expected_s(steps) == pytest.approx(steps.done_s - steps.begun_s, rel=0.05)


def test_without_points_or_batches_nothing_is_expected(calibration: Calibration) -> None:
    assert StepTimes.of(replace(calibration, points=())) is None
    assert StepTimes.of(replace(calibration, batches=())) is None


def test_without_graphs_and_prices_tokens_alone_count(calibration: Calibration) -> None:
    plain = replace(calibration, capture_sizes=(), kv_token_ns=None, pair_ns=None)
    times = StepTimes.of(plain)
    assert times is not None
    engine = FakeEngine()
    engine.step(prefill=1024)
    engine.step(prefill=1024, context=5000)
    expected = times.expected_s(Steps.from_rows(np.array(engine.rows)))
    assert expected[0] == expected[1]


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 10)), min_size=1, max_size=20),
    st.lists(st.floats(0, 50_000), min_size=2, max_size=20),
)
def test_a_curve_never_falls(points: list[tuple[int, float]], at: list[float]) -> None:
    ordered = dict(sorted(points))
    x, y = np.array([float(key) for key in ordered]), np.array(list(ordered.values()))
    values = Curve.through(x, y, np.ones(x.size))(np.sort(np.array(at)))
    assert np.all(np.diff(values) >= -1e-9)
