from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice
from autotune.candidates.live import THRESHOLD
from autotune.forecast import forecaster
from autotune.forecast.forecaster import (
    FACTORS,
    Forecasts,
    forecast_cells,
    forecast_obstacle,
    log_metrics,
    peak_running,
)
from autotune.forecast.simulation import EngineShape, Simulated, Timed, Traffic, simulate
from autotune.traffic.model import Trace, TraceRequest
from objectives.arrays import F8, Bools
from objectives.measurement import point_values
from objectives.samples import RequestSamples
from tests.autotune.forecast.clock import a_second_each

SHAPE = EngineShape(kv_blocks=200, block_size=4)
KEYS = ("ttft_p95", "tpot_p95", "itl_p99", "tokens_per_busy_s")
SIZES = np.arange(1025) / 1024
TIMES = a_second_each(
    decode_s=0.02 + 0.02 * SIZES, mixed_s=0.02 + 0.4 * SIZES, kv_token_s=1e-6, pair_s=1e-7
)
CELLS: list[Candidate] = [
    {TOKENS: tokens, SEQS: seqs} for tokens in (32, 128) for seqs in (2, 4, 6, 16)
]


def measure(samples: RequestSamples) -> Mapping[str, float | None]:
    return point_values(samples, KEYS, classes=())


def traffic_of(*rows: tuple[float, int, int], shape: EngineShape = SHAPE) -> Traffic:
    requests = [
        TraceRequest(at_ms, prompt, output, tuple(range(100 * n, 100 * n + -(-prompt // 4))))
        for n, (at_ms, prompt, output) in enumerate(rows)
    ]
    trace = Trace.build(requests, block_size=4, prefixes_known=True, source="made up")
    return Traffic.of(trace, shape)


def forecast(
    traffic: Traffic,
    cells: list[Candidate] = CELLS,
    *,
    times: Timed = TIMES,
    shape: EngineShape = SHAPE,
    worth: Callable[[F8], Bools] | None = None,
) -> Forecasts:
    return forecast_cells(cells, traffic, times, shape, keys=KEYS, measure=measure, worth=worth)


def column(found: Forecasts, values: F8, key: str) -> F8:
    return np.asarray(values[:, found.keys.index(key)])


BUSY = traffic_of(*((30.0 * n, 60, 8) for n in range(12)))
CALM = traffic_of(*((2000.0 * n, 60, 12) for n in range(3)))

requests = st.lists(
    st.tuples(st.integers(0, 500).map(float), st.integers(1, 90), st.integers(1, 8)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15)
@given(rows=requests, in_flight=st.sampled_from([1, 2]), blocks=st.sampled_from([30, 200]))
def test_cells_together_are_forecast_as_each_alone(
    rows: list[tuple[float, int, int]], in_flight: int, blocks: int
) -> None:
    shape = EngineShape(kv_blocks=blocks, block_size=4, in_flight=in_flight)
    traffic = traffic_of(*rows, shape=shape)
    cells = CELLS[1::2] + CELLS[::2]
    together = forecast(traffic, cells, shape=shape)
    for row, cell in enumerate(cells):
        alone = forecast(traffic, [cell], shape=shape)
        for name in ("logs", "slopes", "noise"):
            np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name)[0])


def test_caps_that_nothing_reaches_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[tuple[object, object]] = []

    def counted(
        traffic: Traffic, times: Timed, shape: EngineShape, cell: Candidate, **given: Any
    ) -> Simulated:
        simulated.append((cell[TOKENS], cell[SEQS]))
        return simulate(traffic, times, shape, cell, **given)

    assert peak_running(simulate(CALM, TIMES, SHAPE, CELLS[-1])) == 1
    monkeypatch.setattr(forecaster, "simulate", counted)
    found = forecast(CALM)
    assert simulated == [(32, 16), (128, 16)] * len(FACTORS)
    np.testing.assert_array_equal(found.logs[:4], np.tile(found.logs[0], (4, 1)))
    assert (found.logs[0] != found.logs[4]).any()


def test_what_is_not_worth_other_paces_follows_them_as_the_nearest_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated: list[tuple[object, object]] = []

    def counted(
        traffic: Traffic, times: Timed, shape: EngineShape, cell: Candidate, **given: Any
    ) -> Simulated:
        simulated.append((cell[TOKENS], cell[SEQS]))
        return simulate(traffic, times, shape, cell, **given)

    whole = forecast(BUSY)
    chosen = np.array([cell[TOKENS] == 128 and cell[SEQS] in {2, 4} for cell in CELLS])
    monkeypatch.setattr(forecaster, "simulate", counted)
    found = forecast(BUSY, worth=lambda _: chosen)
    assert set(simulated[-2:]) == {(128, 2), (128, 4)}
    central = len(simulated) - 2 * (len(FACTORS) - 1)
    assert central <= len(CELLS)
    for name in ("logs", "slopes", "noise"):
        own, full = getattr(found, name), getattr(whole, name)
        np.testing.assert_array_equal(own[chosen], full[chosen])
    near = [5 if cell[SEQS] in {4, 6, 16} else 4 for cell in CELLS]
    np.testing.assert_array_equal(found.slopes, whole.slopes[near])
    np.testing.assert_array_equal(found.noise, whole.noise[near])
    np.testing.assert_allclose(found.logs, whole.logs, atol=0.15)


def test_where_nothing_is_worth_more_all_is() -> None:
    nothing = np.zeros(len(CELLS), dtype=np.bool_)
    found = forecast(CALM, worth=lambda _: nothing)
    np.testing.assert_array_equal(found.slopes, forecast(CALM).slopes)


def test_forecasts_are_those_of_a_simulation_in_the_middle() -> None:
    found = forecast(BUSY)
    for row, cell in enumerate(CELLS):
        plain = log_metrics(simulate(BUSY, TIMES, SHAPE, cell), KEYS, measure)
        np.testing.assert_allclose(found.logs[row], plain, atol=0.15)


def test_latencies_follow_the_pace_of_steps_at_low_load(monkeypatch: pytest.MonkeyPatch) -> None:
    single = forecast(CALM)
    np.testing.assert_allclose(column(single, single.slopes, "tpot_p95"), 1.0, atol=0.25)
    monkeypatch.setattr(forecaster, "JITTER", 0.0)
    found = forecast(CALM)
    for key, slope in [
        ("ttft_p95", 1),
        ("tpot_p95", 1),
        ("itl_p99", 1),
        ("tokens_per_busy_s", -1),
    ]:
        np.testing.assert_allclose(column(found, found.slopes, key), slope, atol=1e-6)
    np.testing.assert_allclose(found.noise, 0.0, atol=1e-6)


def test_ttft_grows_faster_than_steps_where_requests_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forecaster, "JITTER", 0.0)
    queued = traffic_of(*((50.0 * n, 60, 4) for n in range(20)))
    slopes = forecast(queued, [{TOKENS: 32, SEQS: 2}]).slopes[0]
    assert slopes[KEYS.index("ttft_p95")] > 1.5
    assert slopes[KEYS.index("tpot_p95")] == pytest.approx(1.0, abs=0.05)


def test_chance_is_small_and_never_less_than_nothing() -> None:
    found = forecast(BUSY)
    assert (found.noise >= 0).all()
    assert 0 < found.noise.mean() < 0.05


def test_requests_that_never_fit_never_end() -> None:
    tiny = EngineShape(kv_blocks=9, block_size=4)
    found = forecast(traffic_of((0.0, 60, 4), shape=tiny), shape=tiny)
    assert np.isposinf(column(found, found.logs, "ttft_p95")).all()
    assert not column(found, found.slopes, "ttft_p95").any()
    assert not column(found, found.noise, "ttft_p95").any()


def test_what_nobody_can_measure_is_missing() -> None:
    found = forecast(traffic_of((0.0, 60, 1), (100.0, 60, 1)))
    assert np.isnan(column(found, found.logs, "tpot_p95")).all()
    assert np.isfinite(column(found, found.logs, "ttft_p95")).all()
    assert np.isfinite(found.slopes).all()


@pytest.mark.parametrize(
    ("ladders", "obstacle"),
    [
        ({}, None),
        ({THRESHOLD: (0, 256)}, None),
        ({"enforce_eager": (True, False)}, "a simulation does not know enforce_eager"),
        ({THRESHOLD: (0, 256), "block_size": (16, 32)}, "a simulation does not know block_size"),
    ],
)
def test_a_lattice_with_a_knob_that_nobody_can_simulate(
    ladders: dict[str, tuple[int, ...]], obstacle: str | None
) -> None:
    lattice = Lattice({TOKENS: (256, 512), SEQS: (8, 16), **ladders})
    assert forecast_obstacle(lattice, None) == obstacle
    assert forecast_obstacle(lattice, "LoRA changes it") == "LoRA changes it"


def test_a_threshold_makes_other_cells() -> None:
    cells: list[Candidate] = [
        {TOKENS: 128, SEQS: 16, THRESHOLD: threshold} for threshold in (0, 16)
    ]
    found = forecast(BUSY, cells)
    assert (found.logs[0] != found.logs[1]).any()
