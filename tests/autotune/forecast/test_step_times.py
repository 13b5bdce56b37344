from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.forecast.step_fit import joined
from autotune.forecast.step_times import ERROR_BIN_S, StepTimes, sum_errors
from autotune.forecast.sweep import Calibrated
from objectives.arrays import F8
from objectives.steps import COLUMNS, Steps
from tests.autotune.forecast import builders
from tests.autotune.forecast.builders import (
    CAPTURE_SIZES,
    FakeEngine,
    loaded,
    plan,
    planned_ahead,
    slowed,
    smooth_ms,
)

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
SYNC = ("sync8192_512_256_replay0", "sync8192_2048_256_replay0", "sync8192_2048_256_replay1")
ASYNC = (
    "async16384_512_256_replay0",
    "async16384_1024_256_replay0",
    "async16384_2048_256_replay0",
    "async16384_2048_256_replay1",
    "async16384_4096_256_replay0",
    "restart1024_1024_256_replay0",
)
recorded = cache(builders.recorded)


def fitted(*recordings: Steps, capture_sizes: tuple[int, ...] = CAPTURE_SIZES) -> StepTimes:
    return StepTimes.fit(
        joined(recordings), capture_sizes=capture_sizes, max_tokens=16384, max_seqs=1024
    )


@cache
def of_sweep(noise: float = 0.01) -> StepTimes:
    return fitted(FakeEngine(noise=noise, seed=3).sweep(plan()))


@cache
def of_published_sweep(name: str) -> tuple[StepTimes, Steps]:
    data = json.loads((RESULTS / f"{name}.json").read_text())["calibration"]
    names = {field.name for field in fields(Calibrated)}
    sweep = Calibrated.from_json(
        {"seconds": data["seconds_with_start"]}
        | {each: data[each] for each in names if each in data}
    )
    sizes = sweep.calibration.capture_sizes
    return fitted(sweep.steps, capture_sizes=sizes), sweep.steps


def total(times: StepTimes, steps: Steps, *, overlapping: bool = False) -> float:
    """Return by how much the predicted sum of all steps is off."""
    expected_s = times.overlapped_s(steps) if overlapping else times.expected_s(steps)
    actual_s = steps.period_s if overlapping else steps.done_s - steps.begun_s
    return float(expected_s.sum() / actual_s.sum() - 1)


def off(times: StepTimes, steps: Steps, *, overlapping: bool = False) -> tuple[float, float]:
    """Return the median and the 90th percentile of the errors of sums over half a second."""
    errors = sum_errors(times, [steps], overlapping=overlapping, width_s=ERROR_BIN_S)
    median, most = np.quantile(np.abs(errors), [0.5, 0.9])
    return float(median), float(most)


def one_sigma(times: StepTimes, name: str, *, overlapping: bool) -> float:
    """Return the error of sums of a recorded replay, as ``StepTimes.error`` has it."""
    errors = sum_errors(times, [recorded(name)], overlapping=overlapping, width_s=ERROR_BIN_S)
    return float(np.quantile(np.abs(errors), 0.683))


def prompts_and_batches(rows: list[tuple[int, int, int, float]]) -> Steps:
    """One step for each prefill, decodes, context and milliseconds; none is of nothing."""
    table = np.zeros((len(rows), len(COLUMNS)))
    for row, (prefill, decodes, context, ms) in zip(table, rows, strict=True):
        values = {
            "done_s": ms / 1e3,
            "prefill_tokens": prefill,
            "decode_requests": decodes,
            "requests": decodes + (prefill > 0),
            "decode_kv_tokens": decodes * context,
            "prefill_pairs": prefill * context + prefill * (prefill + 1) // 2,
        }
        for name, value in values.items():
            row[COLUMNS.index(name)] = value
    return Steps.from_rows(table)


measured = st.lists(
    st.tuples(
        st.integers(0, 2000), st.integers(1, 400), st.integers(0, 9000), st.floats(0.5, 500)
    ),
    min_size=1,
    max_size=25,
).map(prompts_and_batches)


def assert_sound(table: F8, size: int) -> None:
    assert table.shape == (size + 1,)
    assert table[0] == 0
    assert np.all(np.isfinite(table))
    assert np.all(np.diff(table) >= -1e-12)


@settings(max_examples=30, deadline=None)
@given(steps=measured, captured=st.booleans(), replay=measured)
def test_tables_are_finite_and_never_fall(steps: Steps, captured: bool, replay: Steps) -> None:
    first = StepTimes.fit(
        steps, capture_sizes=CAPTURE_SIZES if captured else (), max_tokens=3000, max_seqs=500
    )
    for times in (first, first.refined([replay], overlapping=False)):
        assert_sound(times.mixed_s, 3000)
        assert_sound(times.decode_s, 500)
        assert min(times.kv_token_s, times.pair_s, times.request_s, times.error) >= 0


def test_the_truth_is_recovered_from_a_sweep() -> None:
    times, truth = of_sweep(), loaded(noise=0, seconds=8)
    assert times.kv_token_s == pytest.approx(44e-9, rel=0.06)
    assert times.pair_s == pytest.approx(1.1e-9, rel=0.06)
    assert times.expected_s(truth) == pytest.approx(truth.done_s - truth.begun_s, rel=0.06)
    assert abs(total(times, truth)) < 0.01
    assert times.error < 0.03


def test_decodes_are_padded_and_the_capture_limit_is_a_jump() -> None:
    times = of_sweep()
    assert times.decode_s[33] == times.decode_s[40] > times.decode_s[32]
    assert times.mixed_s[513] - times.mixed_s[512] > 0.013
    assert times.mixed_s[520] - times.mixed_s[513] < 0.002


def test_tiles_are_kept() -> None:
    times = of_sweep(0.001)
    step = times.mixed_s[2049] - times.mixed_s[2048]
    assert step == pytest.approx(128 * 0.0213e-3, rel=0.15)


def test_a_cpu_has_no_jump() -> None:
    engine = FakeEngine(step_ms=smooth_ms, kv_token_ns=160, pair_ns=10, seed=1)
    times = fitted(engine.sweep(plan(max_tokens=2048, capture_sizes=())), capture_sizes=())
    at = np.array([64, 300, 513, 2048])
    assert times.mixed_s[at] == pytest.approx((3 + at / 8) / 1e3, rel=0.03)


def test_stalls_do_not_matter() -> None:
    steps = FakeEngine(seed=3).sweep(plan())
    done_s = steps.done_s.copy()
    done_s[::40] += 0.2
    times = fitted(replace(steps, done_s=done_s))
    assert times.mixed_s[512:4097] == pytest.approx(of_sweep().mixed_s[512:4097], rel=0.03)


def test_a_sweep_and_replays_are_fitted_together() -> None:
    replays = [loaded(seed=5, seconds=5), loaded(seed=6, seconds=5, budget=1024)]
    times = fitted(FakeEngine(seed=3).sweep(plan()), *replays)
    assert all(abs(total(times, each)) < 0.01 for each in replays)
    assert times.known.decode_requests[1] >= 256


def test_one_kind_of_step_stands_for_the_other() -> None:
    steps = loaded(seconds=3)
    decodes = fitted(steps.select(steps.prefill_tokens == 0))
    assert decodes.mixed_s[64] == decodes.decode_s[64] > 0
    prompts = fitted(steps.select(steps.prefill_tokens > 0))
    assert prompts.decode_s[64] == prompts.mixed_s[64] > 0
    with pytest.raises(ValueError, match="no step"):
        fitted(steps.select(steps.tokens < 0))


def test_what_was_measured_is_known() -> None:
    known = of_sweep().known
    assert known.tokens == (8, 16384)
    assert known.decode_requests == (1, 256)


def test_what_passes_between_two_steps_is_known() -> None:
    steps = loaded(seconds=5)
    pause_s = 1e-4 + 7e-6 * steps.requests
    shift_s = np.concatenate([[0.0], np.cumsum(pause_s)[:-1]])
    times = fitted(replace(steps, begun_s=steps.begun_s + shift_s, done_s=steps.done_s + shift_s))
    assert times.between_s == pytest.approx(1e-4, rel=0.01)
    assert times.between_request_s == pytest.approx(7e-6, rel=0.01)


def test_it_survives_json() -> None:
    times = of_sweep()
    data = json.loads(json.dumps(times.to_json()))
    again = StepTimes.from_json(data)
    assert again.to_json() == times.to_json()
    assert again.known == times.known
    assert np.array_equal(again.mixed_s, times.mixed_s)
    assert np.array_equal(again.decode_s, times.decode_s)
    assert len(json.dumps(data)) < 20_000


@pytest.mark.parametrize("overlapping", [False, True])
def test_nothing_changes_nothing(overlapping: bool) -> None:
    times, steps = of_sweep(), loaded(seconds=1)
    assert times.refined([], overlapping=overlapping) is times
    nothing = steps.select(steps.tokens < 0)
    assert times.refined([nothing], overlapping=overlapping) is times


@settings(max_examples=20, deadline=None)
@given(steps=measured, overlapping=st.booleans())
def test_a_correction_is_of_a_stated_error(steps: Steps, overlapping: bool) -> None:
    done_s = np.cumsum(steps.done_s)
    replay = replace(steps, begun_s=done_s - steps.done_s, done_s=done_s)
    after = of_sweep().refined([replay], overlapping=overlapping)
    assert np.all(np.isfinite(sum_errors(after, [replay], overlapping=overlapping)))
    assert 0.01 <= after.error <= 1
    if len(steps) == 1:
        assert np.array_equal(after.mixed_s, of_sweep().mixed_s)


def test_noise_is_not_learnt() -> None:
    before, noisy = of_sweep(), loaded(seconds=1, noise=0.05, seed=1)
    after = before.refined([noisy], overlapping=False)
    assert np.array_equal(after.mixed_s, before.mixed_s)
    assert np.array_equal(after.decode_s, before.decode_s)
    assert after.error >= before.error


def test_sizes_that_were_left_out_count_though_all_come_again_and_again() -> None:
    """Every size is measured 12 times, and always the same: only another size tells anything."""
    sizes = [600, 800, 1000, 1200, 1400, 1600, 1800, 2000]
    flat, tall = (
        fitted(prompts_and_batches([(size, 0, 0, ms) for _ in range(12) for size, ms in curve]))
        for curve in (
            [(size, size / 10) for size in sizes],
            [(size, 1600 * (size > 1300) + size / 10) for size in sizes],
        )
    )
    assert flat.error < 0.02
    assert tall.error > 0.1


def test_a_pace_that_changes_counts() -> None:
    replay = slowed(loaded(seed=5, seconds=8), begin_s=4, end_s=100, factor=1.2)
    assert of_sweep().refined([replay], overlapping=False).error > 0.05


def test_of_one_step_no_error_is_known() -> None:
    assert fitted(prompts_and_batches([(100, 0, 0, 5)])).error == 1


def test_single_steps_correct_the_level_and_the_rest_keeps_its_shape() -> None:
    before = of_sweep()
    slower = slowed(loaded(seed=5, seconds=6), begin_s=0, end_s=100, factor=1.1)
    after = before.refined([slower], overlapping=False)
    assert abs(total(after, slower)) < 0.01
    at = np.array([256, 512, 1024, 4096, 8192])
    assert after.mixed_s[at] / before.mixed_s[at] == pytest.approx(1.1, abs=0.03)
    assert after.known.tokens[1] == before.known.tokens[1]


@pytest.mark.parametrize("budget", [512, 2048])
def test_sums_correct_the_share_of_the_host(budget: int) -> None:
    replay = planned_ahead(loaded(seed=5, budget=budget), host_s=1.2e-3, host_request_s=25e-6)
    after = of_sweep().refined([replay], overlapping=True)
    usual_s = after.host_s + 40 * after.host_request_s
    assert usual_s == pytest.approx(1.2e-3 + 40 * 25e-6, rel=0.08)
    assert abs(total(after, replay, overlapping=True)) < 0.005
    other = planned_ahead(loaded(seed=8, budget=1024), host_s=1.2e-3, host_request_s=25e-6)
    assert abs(total(after, other, overlapping=True)) < 0.01


@pytest.mark.shared
def test_recorded_steps_are_fitted_and_predicted_by_the_others() -> None:
    times = fitted(*(recorded(name) for name in SYNC))
    for name in SYNC:
        median, most = off(times, recorded(name))
        assert abs(total(times, recorded(name))) < 0.01
        assert median < 0.02
        assert most < 0.035
        without = fitted(*(recorded(each) for each in SYNC if each != name))
        median, most = off(without, recorded(name))
        assert abs(total(without, recorded(name))) < 0.025
        assert median < 0.03
        assert most < 0.05


@pytest.mark.shared
def test_a_published_sweep_predicts_another_engine_of_the_same_kind() -> None:
    times, _ = of_published_sweep("h200_trials_aa")
    for name in SYNC:
        median, most = off(times, recorded(name))
        assert abs(total(times, recorded(name))) < 0.025
        assert median < 0.03
        assert most < 0.07


@pytest.mark.shared
def test_the_stated_error_is_that_of_replays_that_were_not_seen() -> None:
    for name in SYNC:
        without = fitted(*(recorded(each) for each in SYNC if each != name))
        assert one_sigma(without, name, overlapping=False) < 1.2 * without.error < 0.035
    sweep, _ = of_published_sweep("h200_trials_aa")
    assert max(one_sigma(sweep, name, overlapping=False) for name in SYNC) < sweep.error < 0.06


@pytest.mark.shared
@pytest.mark.parametrize(("names", "overlapping"), [(ASYNC, True), (SYNC, False)])
@pytest.mark.parametrize("replays", [1, 2])
def test_so_is_that_of_a_correction(
    names: tuple[str, ...], overlapping: bool, replays: int
) -> None:
    sweep, _ = of_published_sweep("h200_trials_aa")
    stated, real = [], []
    for own in combinations(names, replays):
        after = sweep.refined([recorded(name) for name in own], overlapping=overlapping)
        others = [name for name in names if name not in own]
        real.append(np.mean([one_sigma(after, name, overlapping=overlapping) for name in others]))
        stated.append(after.error)
    assert np.mean(real) < 1.1 * np.mean(stated)
    assert np.max(np.divide(real, stated)) < 2
    assert np.mean(stated) < 0.04


@pytest.mark.shared
@pytest.mark.parametrize("name", ASYNC)
def test_one_replay_with_overlap_is_enough_to_predict_all(name: str) -> None:
    times, _ = of_published_sweep("h200_trials_aa")
    after = times.refined([recorded(name)], overlapping=True)
    for each in ASYNC:
        median, most = off(after, recorded(each), overlapping=True)
        assert abs(total(after, recorded(each), overlapping=True)) < 0.03
        assert median < 0.035
        assert most < 0.1
    assert 1e-3 < after.host_s < 1.5e-3


def test_the_sweep_of_a_cpu_is_fitted() -> None:
    times, steps = of_published_sweep("trials_cpu")
    assert abs(total(times, steps)) < 0.03
    assert times.error < 0.06
