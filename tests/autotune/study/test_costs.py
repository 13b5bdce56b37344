from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.study.costs import (
    LEAST_DEGREES,
    WORK_COST,
    Noise,
    costs_of,
    draw_costs,
    gather_cells,
    objective_names,
    replicate_noise,
    work_metric,
)
from objectives.limits import parse_budget
from objectives.statistics import aggregate
from tests.autotune.study.records import Measured, limits, record
from tests.autotune.study.scripted import Speed

NAMES = ("ttft_p95", "tpot_p95", WORK_COST)
NO_BUDGET = parse_budget("")


def metrics(ttft_ms: float, tpot_ms: float, rate: float = 1000.0) -> dict[str, float]:
    return {"ttft_p95": ttft_ms, "tpot_p95": tpot_ms, "tokens_per_busy_s": rate}


def test_objectives_follow_the_budget() -> None:
    assert objective_names(NO_BUDGET) == NAMES
    assert objective_names(parse_budget("itl_p99@short:60 e2e:9")) == (
        "e2e_p95", "itl_p99@short", WORK_COST,
    )  # fmt: skip


def test_without_a_calibration_work_costs_busy_seconds_per_thousand_tokens() -> None:
    assert costs_of(metrics(100, 10, 500), NAMES) == (100, 10, 2.0)
    assert costs_of({**metrics(100, 10, 500), "utilization": None}, NAMES) == (100, 10, 2.0)


def test_with_a_calibration_work_costs_the_reciprocal_of_utilization() -> None:
    assert costs_of({**metrics(100, 10, 500), "utilization": 0.4}, NAMES) == (100, 10, 2.5)
    # Never in the unit of tokens, where the other trials are in that of utilization.
    assert math.isnan(costs_of({**metrics(100, 10, 500), "utilization": 0.0}, NAMES)[2])


def test_work_is_told_by_utilization_where_trials_have_it() -> None:
    plain = {**metrics(100, 10), "utilization": None}
    assert work_metric([]) == work_metric([plain, metrics(1, 1)]) == "tokens_per_busy_s"
    assert work_metric([plain, {**plain, "utilization": 0.4}]) == "utilization"


def test_a_cell_of_a_calibrated_study_is_scored_by_utilization() -> None:
    trials = [
        record(n, metrics={**metrics(100, 10), "utilization": share})
        for n, share in enumerate((0.4, 0.9))
    ]
    (cell,) = gather_cells(trials, NO_BUDGET, NAMES)
    assert cell.costs[2] == pytest.approx(1 / 0.6)
    assert cell.metrics["utilization"] == pytest.approx(0.6)


def test_what_was_not_measured_is_nan() -> None:
    costs = costs_of({"ttft_p95": math.inf, "tpot_p95": None, "tokens_per_busy_s": 0.0}, NAMES)
    assert costs[0] == math.inf
    assert math.isnan(costs[1])
    assert math.isnan(costs[2])


def test_trials_of_one_candidate_are_one_cell() -> None:
    trials = [
        record(0, limits(512), metrics=metrics(100, 10), intervals={"ttft_p95": [1, 2]}),
        record(1, limits(1024), metrics=metrics(50, 20)),
        record(2, limits(512), metrics=metrics(400, 20), intervals={"ttft_p95": [3, 4]}),
        record(3, limits(512), metrics=metrics(1, 1), state="invalid"),
        record(4, limits(2048), state="infeasible"),
    ]
    cells = gather_cells(trials, NO_BUDGET, NAMES)
    assert [cell.numbers for cell in cells] == [(0, 2), (1,)]
    assert cells[0].costs == pytest.approx([200, math.sqrt(200), 1.0])
    assert cells[0].metrics["ttft_p95"] == pytest.approx(200)
    assert cells[0].intervals == {"ttft_p95": [1, 4]}
    assert cells[0].log_costs.shape == (2, 3)


def test_a_cell_keeps_the_budget_by_its_geometric_means() -> None:
    trials = [record(n, metrics=metrics(ttft, 10)) for n, ttft in enumerate((50, 200))]
    (cell,) = gather_cells(trials, parse_budget("ttft_p95:100.1"), NAMES)
    assert cell.feasible
    (cell,) = gather_cells(trials, parse_budget("ttft_p95:99"), NAMES)
    assert not cell.feasible
    assert cell.met == (0,)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ((0.1,), 0.1),
        ((1239.4, 346.8), math.sqrt(1239.4 * 346.8)),
        ((2.0, math.inf), math.inf),
        ((0.0, 5.0), 0.0),
        ((None, 5.0), 5.0),
        ((None, None), None),
    ],
)
def test_metrics_of_a_cell_are_the_means_that_are_compared(
    values: tuple[float | None, ...], mean: float | None
) -> None:
    trials = [record(n, metrics={"ttft_p95": value}) for n, value in enumerate(values)]
    (cell,) = gather_cells(trials, NO_BUDGET, NAMES)
    assert cell.metrics["ttft_p95"] == (None if mean is None else pytest.approx(mean))


def test_one_failed_request_in_any_trial_makes_a_cell_infeasible() -> None:
    trials = [
        record(0, metrics=metrics(90, 10), engine={"failed_requests": 0}),
        record(1, metrics=metrics(90, 10), engine={"failed_requests": 2}),
    ]
    (cell,) = gather_cells(trials, NO_BUDGET, NAMES)
    assert cell.failed_requests == 2
    assert not cell.feasible


def test_noise_is_the_spread_between_repetitions() -> None:
    trials = [
        record(0, limits(512), metrics=metrics(100, 10)),
        record(1, limits(512), metrics=metrics(100 * math.e**0.2, 10)),
        record(2, limits(1024), metrics=metrics(1, 1)),
    ]
    noise = replicate_noise(gather_cells(trials, NO_BUDGET, NAMES))
    assert noise is not None
    assert noise.sigma == pytest.approx([0.2 / math.sqrt(2), 0, 0])
    assert noise.degrees == 1


def test_noise_is_pooled_over_cells() -> None:
    pairs = [(512, 0.1), (512, 0.3), (1024, 0.5), (1024, 1.1)]
    trials = [
        record(n, limits(tokens), metrics=metrics(math.exp(log), 10))
        for n, (tokens, log) in enumerate(pairs)
    ]
    noise = replicate_noise(gather_cells(trials, NO_BUDGET, NAMES))
    assert noise is not None
    assert noise.degrees == 2
    assert noise.sigma[0] == pytest.approx(math.sqrt((0.02 + 0.18) / 2))


def test_without_repetitions_the_noise_is_unknown() -> None:
    assert (
        replicate_noise(gather_cells([record(0, metrics=metrics(1, 1))], NO_BUDGET, NAMES)) is None
    )


def test_draws_lie_around_the_costs_and_pair_the_cells() -> None:
    study = Measured()
    study.add(limits(512), Speed(100, 10), seed=1)
    study.add(limits(1024), Speed(200, 20), seed=1)
    cells = gather_cells(study.trials, NO_BUDGET, NAMES)
    draws = draw_costs(cells, study.samples.__getitem__, NAMES, (), None)
    assert draws.shape[1:] == (2, 3)
    assert np.median(draws[:, 0, 0]) == pytest.approx(100, rel=0.03)
    # The same requests with the same jitter are drawn for both, so that all ratios are alike.
    assert draws[:, 1, 0] / draws[:, 0, 0] == pytest.approx(2.0)
    assert draws[:, 0, 2] == pytest.approx(cells[0].costs[2])


def test_draws_of_a_class_see_only_its_requests() -> None:
    study = Measured(classes="short:0-500 long:500-")
    trial = study.add(limits(512), Speed(100, 10))
    arrays = dict(study.samples[0])
    long = arrays["prompt_tokens"] >= 500
    arrays["first_token_s"] = np.where(long, arrays["scheduled_s"] + 5, arrays["first_token_s"])
    arrays["last_token_s"] = arrays["first_token_s"] + 1
    arrays["gap_s"] = np.where(long[arrays["gap_request"]], 0.3, 0.01)
    names = ("ttft_p50@short", "itl_p50@long", WORK_COST)
    (cell,) = gather_cells([trial], NO_BUDGET, names)
    draws = draw_costs([cell], lambda _: arrays, names, study.classes, None)
    assert draws[:, 0, 0].max() < 110
    assert draws[:, 0, 1] == pytest.approx(300)


def test_lost_requests_draw_infinite_costs() -> None:
    study = Measured()
    study.add(limits(512), Speed(100, 10, failed=20))
    cells = gather_cells(study.trials, NO_BUDGET, NAMES)
    draws = draw_costs(cells, study.samples.__getitem__, NAMES, (), None)
    assert aggregate(draws[:, 0, 0], "p50") == math.inf


def test_infinite_costs_say_nothing_of_noise() -> None:
    """Two overloaded repeats would give infinity minus infinity."""
    trials = [
        record(n, limits(tokens), metrics=metrics(value, 10))
        for n, (tokens, value) in enumerate(
            [(512, math.inf), (512, math.inf), (1024, 5), (1024, 5)]
        )
    ]
    noise = replicate_noise(gather_cells(trials, NO_BUDGET, NAMES))
    assert noise is not None
    assert noise.sigma[0] == 0
    assert noise.degrees == 1


def test_few_repeats_add_their_noise_to_that_of_requests() -> None:
    study = Measured()
    study.add(limits(512), Speed(100, 10))
    cells = gather_cells(study.trials, NO_BUDGET, NAMES)
    noise = Noise(np.array([0.0, 0.0, 0.3]), degrees=LEAST_DEGREES - 1)
    draws = draw_costs(cells, study.samples.__getitem__, NAMES, (), noise)
    quiet = draw_costs(cells, study.samples.__getitem__, NAMES, (), None)
    assert draws[:, 0, :2] == pytest.approx(quiet[:, 0, :2])
    # As Student's t of three degrees, whose median is that of wider tails.
    assert np.median(np.abs(np.log(draws[:, 0, 2] / cells[0].costs[2]))) == pytest.approx(
        0.3 * 0.765, rel=0.2
    )


def test_repeats_that_tell_the_noise_are_all_that_is_drawn() -> None:
    study = Measured()
    for seed in range(4):
        study.add(limits(512), Speed(100, 10), seed=seed)
    cells = gather_cells(study.trials, NO_BUDGET, NAMES)
    noise = Noise(np.array([0.2, 0.0, 0.0]), degrees=60)
    draws = draw_costs(cells, study.samples.__getitem__, NAMES, (), noise)
    spread = np.log(draws[:, 0] / cells[0].costs).std(axis=0)
    # Less by the root of how often the cell was measured.
    assert spread[0] == pytest.approx(0.1, rel=0.15)
    assert spread[1:].tolist() == [0, 0]


def test_bounds_of_a_cell_hold_for_each_of_its_trials() -> None:
    trials = [
        record(
            0,
            limits(512),
            metrics=metrics(1, 1),
            intervals={"ttft_p95": [1.0, 5.0], "a": [1.0, 2.0]},
        ),
        record(
            1,
            limits(512),
            metrics=metrics(1, 1),
            intervals={"ttft_p95": [2.0, 9.0], "a": [0.5, None]},
        ),
    ]
    (cell,) = gather_cells(trials, NO_BUDGET, NAMES)
    assert cell.intervals == {"ttft_p95": [1.0, 9.0], "a": [0.5, None]}
