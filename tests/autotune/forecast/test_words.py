from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.forecast.calibration import Calibration
from autotune.forecast.words import WIDTH, plot_lines, table_lines
from objectives.steps import Steps
from tests.autotune.forecast.builders import CAPTURE_SIZES, FakeEngine, plan, smooth_ms


@pytest.fixture(scope="module")
def gpu() -> Calibration:
    return Calibration.measured(
        FakeEngine().sweep(plan()), plan=plan(), capture_sizes=CAPTURE_SIZES
    )


def test_the_table_says_times_edges_and_prices(gpu: Calibration) -> None:
    text = "\n".join(table_lines(replace(gpu, best_flops_per_s=6.5e14)))
    assert "last before a jump (capture)" in text
    assert "512 to 513" in text
    assert "largest captured CUDA graph" in text
    assert "Quantum     128 tokens" in text
    assert "CUDA graphs up to 512 tokens" in text
    assert "ns for a token read by a decode" in text
    assert "Best rate   650 TFLOP/s" in text
    assert "sizes between them" in text


def test_the_plot_shows_both_kinds_of_step_and_marks_the_edges(gpu: Calibration) -> None:
    lines = plot_lines(gpu)
    [marks] = [line for line in lines if line.lstrip().startswith("edges")]
    column = marks.index("C")
    over = [line[column] for line in lines[1:-3] if len(line) > column]
    assert "*" in over
    assert "^" in marks
    assert any("o" in line for line in lines[1:])
    assert lines[-1].split() == ["16", "64", "256", "1024", "4096"]


def test_a_single_repeat_has_no_spread(gpu: Calibration) -> None:
    once = replace(
        gpu,
        points=tuple(replace(each, repeats=1, spread_ms=0.0) for each in gpu.points),
        batches=tuple(replace(each, repeats=1, spread_ms=0.0) for each in gpu.batches),
    )
    rows = [line.split() for line in table_lines(once)]
    spreads = [row[2] for row in rows if len(row) >= 5 and row[0].isdigit() and row[4] == "1"]
    assert len(spreads) > 10
    assert set(spreads) == {"-"}


def test_nothing_is_wider_than_80_columns(gpu: Calibration) -> None:
    lines = table_lines(gpu) + plot_lines(gpu)
    assert max(map(len, lines)) <= WIDTH
    assert all(line == line.rstrip() for line in lines)


def test_a_cpu_has_neither_graphs_nor_edges() -> None:
    sweep = FakeEngine(step_ms=smooth_ms).sweep(plan(capture_sizes=()))
    found = Calibration.measured(sweep, plan=plan(), capture_sizes=())
    text = "\n".join(table_lines(found) + plot_lines(found))
    assert "No size stands out" in text
    assert "none stands out" in text
    assert "CUDA graphs none" in text
    assert "o a step" in text
    assert "edges" not in text


def test_what_was_not_measured_is_said() -> None:
    nothing = Calibration.measured(
        Steps.from_rows(np.empty((0, 13))), plan=plan(), capture_sizes=()
    )
    text = "\n".join(table_lines(nothing))
    assert "No prefill step was measured." in text
    assert "No decode step was measured." in text
    assert text.count("not measured") == 2
    assert plot_lines(nothing) == []


def test_a_level_line_can_be_drawn() -> None:
    engine = FakeEngine(step_ms=lambda _: 5.0, noise=0, pair_ns=0)
    for size in (64, 128, 128):
        engine.prompt(size)
    rows = np.round(np.array(engine.rows), 9)
    found = Calibration.measured(Steps.from_rows(rows), plan=plan(), capture_sizes=())
    assert any(line.count("o") == 2 for line in plot_lines(found)[1:])
