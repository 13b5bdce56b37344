"""What restarts of cells measured live only are expected to cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.candidates.lattice import Candidate
from autotune.study.as_restarts import as_restarts, live_shift
from autotune.study.costs import Cell, Noise
from objectives.arrays import F8
from tests.autotune.study.records import limits

NOISE = Noise(np.array([0.04, 0.02, 0.0]), degrees=3)


def cell(
    candidate: Candidate, *, restarts: list[list[float]] | None = None, lives: list[list[float]]
) -> Cell:
    live = np.log(np.array(lives).reshape(-1, 3))
    logs = live if restarts is None else np.log(np.array(restarts))
    return Cell(
        candidate=candidate,
        numbers=tuple(range(len(logs))),
        costs=np.exp(logs.mean(axis=0)),
        log_costs=logs,
        metrics={},
        intervals={},
        feasible=True,
        failed_requests=0,
        fidelity="live" if restarts is None else "restart",
        live_log_costs=live,
    )


BOTH = cell(limits(512), restarts=[[120.0, 10.0, 1.0]], lives=[[100.0, 10.0, 1.0]])
OTHER = cell(limits(768), restarts=[[110.0, 10.0, 1.0]], lives=[[100.0, 10.0, 1.0]])
ENDLESS = cell(limits(896), restarts=[[math.inf, 10.0, 1.0]], lives=[[100.0, 10.0, 1.0]])
LIVE = cell(limits(1024), lives=[[90.0, 11.0, 1.0]])


def test_the_offset_is_the_mean_over_what_was_measured_both_ways() -> None:
    shift = live_shift([BOTH, OTHER, ENDLESS, LIVE], None)
    assert np.exp(shift.offset) == pytest.approx([math.sqrt(1.2 * 1.1), 1, 1])
    nothing = live_shift([LIVE], NOISE)
    for figure in (nothing.offset, nothing.error, nothing.spread):
        assert figure.tolist() == [0, 0, 0]


def test_one_cell_measured_both_ways_is_off_by_the_noise_of_two_trials() -> None:
    shift = live_shift([BOTH, LIVE], NOISE)
    assert shift.error == pytest.approx(math.sqrt(2) * NOISE.sigma)
    assert shift.spread == pytest.approx([0, 0, 0])


def test_shifts_that_differ_by_more_than_noise_are_a_spread_of_their_own() -> None:
    apart = math.log(1.2 / 1.1)
    variance = apart**2 / 2
    assert live_shift([BOTH, OTHER], None).spread == pytest.approx([math.sqrt(variance), 0, 0])
    quiet = Noise(np.array([0.01, 0.01, 0.01]), degrees=3)
    shift = live_shift([BOTH, OTHER], quiet)
    assert shift.spread == pytest.approx([math.sqrt(variance - 2e-4), 0, 0])
    assert shift.error == pytest.approx([math.sqrt(variance / 2), 0.01, 0.01])


def draws_of(cells: list[Cell], noise: Noise | None) -> F8:
    alike = np.ones((4000, 1, 1)) * np.stack([each.costs for each in cells])
    return as_restarts(alike, cells, noise)


def test_only_live_cells_are_moved_and_by_shift_and_its_error() -> None:
    cells = [BOTH, LIVE, cell(limits(1536), lives=[[80.0, 12.0, 1.0]])]
    draws = draws_of(cells, NOISE)
    assert (draws[:, 0] == BOTH.costs).all()
    logs = np.log(draws[:, 1:])
    assert np.exp(logs.mean(axis=0)[:, 0]) == pytest.approx([108.0, 96.0], rel=0.01)
    assert logs.std(axis=0)[0] == pytest.approx(math.sqrt(2) * NOISE.sigma, rel=0.05)
    # The error is of what all of them are shifted by: it leaves their ratio alone.
    assert np.ptp(logs[:, 0] - logs[:, 1], axis=0) == pytest.approx([0, 0, 0])


def test_without_live_cells_nothing_changes() -> None:
    draws = np.ones((3, 1, 3))
    assert as_restarts(draws, [BOTH], NOISE) is draws
