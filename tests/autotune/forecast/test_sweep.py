from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from autotune.forecast.ladder import sequence_caps, worthwhile_budgets
from autotune.forecast.sweep import Calibrated, MeasuredRungs
from objectives.arrays import Bools
from objectives.steps import Steps
from objectives.utilization import Work, step_flops
from tests.autotune.forecast.builders import CAPTURE_SIZES, FakeEngine, plan

WORK = Work(1.6e10, 2e5, 1e9, "vllm")
PLAN = plan(max_tokens=4096)


@pytest.fixture(scope="module")
def calibrated() -> Calibrated:
    steps = FakeEngine().sweep(PLAN)
    return Calibrated.of(
        steps, plan=PLAN, whole=False, capture_sizes=CAPTURE_SIZES, work=WORK, seconds=84.25
    )


def test_work_makes_a_rate_and_without_it_there_is_none(calibrated: Calibrated) -> None:
    steps = calibrated.steps
    fastest = step_flops(steps, WORK) / (steps.done_s - steps.begun_s)
    found = calibrated.calibration.best_flops_per_s
    assert found is not None
    assert 0.9 * fastest.max() < found <= fastest.max()
    other = Calibrated.of(steps, plan=PLAN, whole=True, capture_sizes=(), work=None)
    assert other.calibration.best_flops_per_s is None


def test_a_sweep_survives_json(calibrated: Calibrated) -> None:
    again = Calibrated.from_json(json.loads(json.dumps(calibrated.to_json(), allow_nan=False)))
    assert again.calibration == calibrated.calibration
    assert (again.whole, again.seconds) == (False, 84.25)
    for field in fields(Steps):
        before, after = (getattr(each.steps, field.name) for each in (calibrated, again))
        assert after.dtype == before.dtype
        if field.name.endswith("_s"):
            np.testing.assert_allclose(after, before, atol=0.6e-6)
        else:
            np.testing.assert_array_equal(after, before)


def test_no_steps_survive_json_too() -> None:
    none = Steps.from_rows(np.empty((0, len(fields(Steps)))))
    before = Calibrated.of(none, plan=PLAN, whole=False, capture_sizes=(), work=WORK)
    after = Calibrated.from_json(json.loads(json.dumps(before.to_json())))
    assert len(after.steps) == 0
    assert after.calibration == before.calibration


def test_the_ladders_are_those_of_the_calibration(calibrated: Calibrated) -> None:
    rungs, calibration = MeasuredRungs(calibrated.calibration), calibrated.calibration
    assert rungs.kept == (512,)
    budgets = rungs.budgets(128, 128, 4096)
    assert budgets == worthwhile_budgets(calibration, tile=128, low=128, top=4096)
    assert {512, 4096} <= set(budgets)
    assert rungs.caps(8, 256) == sequence_caps(CAPTURE_SIZES, tile=8, top=256)


def test_without_graphs_nothing_is_kept() -> None:
    steps = FakeEngine().sweep(PLAN)
    found = Calibrated.of(steps, plan=PLAN, whole=True, capture_sizes=(), work=None)
    assert MeasuredRungs(found.calibration).kept == ()


def test_a_sweep_is_whole_if_all_of_its_plan_was_measured_as_planned() -> None:
    steps = FakeEngine().sweep(PLAN)

    def whole(kept: Bools, *, in_time: bool = True) -> bool:
        part = steps.select(kept)
        return Calibrated.of(part, plan=PLAN, whole=in_time, capture_sizes=(), work=None).whole

    all_of_it = np.ones(len(steps), dtype=np.bool_)
    assert whole(all_of_it)
    assert not whole(all_of_it, in_time=False)
    assert not whole(steps.prefill_tokens != 2049)
    batches = steps.decode_requests
    assert not whole(batches != PLAN.decodes[0])
    assert not whole((batches != 32) | (steps.decode_kv_tokens < 32 * 1024))
    one_less = all_of_it.copy()
    one_less[np.flatnonzero(batches == 8)[0]] = False
    assert not whole(one_less)
