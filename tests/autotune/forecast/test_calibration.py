from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from autotune.forecast.calibration import Calibration
from autotune.forecast.grid import DECODE_STEPS
from objectives.arrays import F8
from objectives.steps import Steps
from tests.autotune.forecast.builders import (
    CAPTURE_SIZES,
    FakeEngine,
    h200_ms,
    plan,
    smooth_ms,
)


def calibrated(engine: FakeEngine, *, until_s: float = np.inf) -> Calibration:
    steps = engine.sweep(plan(), until_s=until_s)
    return Calibration.measured(steps, plan=plan(), capture_sizes=CAPTURE_SIZES)


@pytest.fixture(scope="module")
def gpu() -> Calibration:
    return calibrated(FakeEngine())


def test_step_times_and_prices_are_those_of_the_engine(gpu: Calibration) -> None:
    for point in gpu.points:
        pairs_ms = point.tokens * (point.tokens + 1) / 2 * 1.1e-6
        truth_ms = h200_ms(point.tokens) + pairs_ms
        assert point.median_ms == pytest.approx(truth_ms, rel=0.03)
    for batch in gpu.batches:
        assert batch.median_ms == pytest.approx(
            h200_ms(batch.requests) + batch.kv_tokens * 44e-6, rel=0.03
        )
    assert gpu.kv_token_ns == pytest.approx(44, rel=0.1)
    assert gpu.pair_ns == pytest.approx(1.1, rel=0.1)


def test_the_capture_limit_and_the_tiles_are_edges(gpu: Calibration) -> None:
    [capture] = [edge for edge in gpu.edges if edge.kind == "capture"]
    assert (capture.from_tokens, gpu.capture_limit) == (512, 512)
    assert capture.jump_ratio > 1
    tiles = {edge.from_tokens for edge in gpu.edges if edge.kind == "tile"}
    assert {1024, 1152, 1280} <= tiles
    assert all(size % 128 == 0 for size in tiles if size > 512)
    assert gpu.quantum == 128


def test_it_survives_json(gpu: Calibration) -> None:
    assert Calibration.from_json(json.loads(json.dumps(gpu.to_json()))) == gpu


def test_a_sweep_cut_short_is_still_a_calibration() -> None:
    engine = FakeEngine()
    engine.sweep(plan())
    cut = calibrated(FakeEngine(), until_s=0.4 * engine.clock_s)
    assert cut.edges[0].kind == "capture"
    assert (cut.points[0].tokens, cut.points[-1].tokens) == (8, 16384)
    assert cut.batches[-1].requests == 256


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_a_smooth_engine_has_no_structure(noise: float) -> None:
    for seed in range(3):
        found = calibrated(FakeEngine(step_ms=smooth_ms, noise=noise, seed=seed))
        assert (found.edges, found.quantum) == ((), None)


@pytest.mark.parametrize("begin_s", [0.0, 4.0, 12.0, 20.0])
def test_a_slow_spell_during_the_sweep_makes_no_edge(begin_s: float) -> None:
    def spell(now_s: float) -> float:
        return 1.25 if begin_s <= now_s < begin_s + 4 else 1.0

    found = calibrated(FakeEngine(step_ms=smooth_ms, slow=spell))
    assert (found.edges, found.quantum) == ((), None)


def test_nothing_measured_is_nothing_known() -> None:
    empty = Steps.from_rows(np.empty((0, 13)))
    found = Calibration.measured(
        empty, plan=plan(), capture_sizes=(), flops_of=lambda _: np.empty(0)
    )
    assert found == Calibration((), (), (), None, (), None, None, None)
    assert found.capture_limit is None


def test_the_best_rate_is_that_of_repeated_steps_not_of_one_early_stamp() -> None:
    engine = FakeEngine(
        step_ms=lambda tokens: tokens * 0.02, noise=0.001, pair_ns=0, kv_token_ns=0
    )
    steps = engine.sweep(plan())
    early = steps.done_s.copy()
    early[3] = steps.begun_s[3] + (early[3] - steps.begun_s[3]) / 10

    def flops_of(sweep: Steps) -> F8:
        return np.asarray(sweep.tokens * 16e9, dtype=np.float64)

    found = Calibration.measured(
        replace(steps, done_s=early), plan=plan(), capture_sizes=(), flops_of=flops_of
    )
    assert found.best_flops_per_s == pytest.approx(8e14, rel=0.01)


def test_mixed_steps_and_joint_prefills_are_left_out() -> None:
    engine = FakeEngine()
    for _ in range(3):
        engine.prompt(256)
        engine.step(prefill=256, decodes=4, kv=100)
    rows = np.array([*engine.rows, *engine.rows])
    rows[-1, 5] = 2  # Two prompts in one step.
    rows[-1, 4] = 0
    found = Calibration.measured(Steps.from_rows(rows), plan=plan(), capture_sizes=())
    assert [(point.tokens, point.repeats) for point in found.points] == [(256, 6)]
    assert found.batches == ()


def test_batches_that_nobody_planned_are_left_out() -> None:
    """Such as come about while requests are preempted, or before all are prefilled."""
    engine = FakeEngine()
    engine.sweep(plan())
    planned = len(engine.rows)
    engine.batch(85, 40)
    engine.batch(128, 1500)
    engine.batch(32, 500)
    before, after = (
        Calibration.measured(Steps.from_rows(np.array(rows)), plan=plan(), capture_sizes=())
        for rows in (engine.rows[:planned], engine.rows)
    )
    assert after.batches == before.batches
    assert [each.requests for each in after.batches] == sorted(plan().decodes)
    assert {each.repeats for each in after.batches} == {DECODE_STEPS}
    assert after.kv_token_ns == before.kv_token_ns
