"""What the bench of searches makes of its figures, and whether its truths are what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.forecast.simulation import Traffic
from autotune.traffic.model import Trace, TraceRequest
from tests.bench_scripts import imported

MODULES = ("search", "search_methods", "search_table", "search_truth")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    yield from imported(monkeypatch, MODULES)


def rows(method: str, regrets: dict[tuple[str, int], float], counts: Any) -> list[dict[str, Any]]:
    return [
        {"workload": name, "seed": seed, "method": method, "trials": count, "regret": value}
        for (name, seed), value in regrets.items()
        for count in counts
    ]


def test_means_have_errors_and_differences_are_paired(scripts: dict[str, ModuleType]) -> None:
    script = scripts["search"]
    own = rows("autotune", {("a", 0): 0.1, ("a", 1): 0.3}, script.COUNTS)
    other = rows("tpe", {("a", 0): 0.2, ("a", 1): 0.4}, script.COUNTS)
    found = script.summary([*own, *other])
    assert found["regret"]["autotune"]["6"] == pytest.approx([0.2, 0.1])
    bars = found["bars"]
    assert bars.keys() == {"autotune_6_minus_tpe_40", "autotune_minus_tpe"}
    assert bars["autotune_minus_tpe"].keys() == {"2", "4", "6", "10", "20", "40"}
    assert bars["autotune_minus_tpe"]["10"]["difference"] == pytest.approx([-0.1, 0.0])
    assert bars["autotune_6_minus_tpe_40"]["passed"] is True
    assert script.mean_and_error([0.5]) == [0.5, None]


def test_a_table_says_which_bars_are_missed(scripts: dict[str, ModuleType]) -> None:
    script = scripts["search"]
    own = rows("autotune", {("a", 0): 0.5, ("a", 1): 0.5}, script.COUNTS)
    other = rows("tpe", {("a", 0): 0.2, ("a", 1): 0.4}, script.COUNTS)
    lines = scripts["search_table"].tables(script.summary([*own, *other]))
    assert lines[0] == "| mean regret after | 2 | 4 | 6 | 10 | 20 | 40 trials |"
    assert lines[3].startswith("| `tpe` | 0.300 ± 0.100 |")
    assert lines[4].startswith("| autotune − tpe, paired | +0.200 ± 0.100 |")
    assert lines[-1] == "autotune at 6 − tpe at 40, paired: +0.200 ± 0.100"
    certain = rows("autotune", {("a", 0): 0.4, ("a", 1): 0.6}, script.COUNTS)
    lines = scripts["search_table"].tables(script.summary([*certain, *other]))
    assert lines[-1].endswith("+0.200 ± 0.000 (**missed**)")


@pytest.mark.parametrize(
    ("differences", "passed"),
    [([0.0, 0.0], True), ([0.3, 0.3], False), ([0.0, 0.4], True), ([-1.0, -1.0], True),
     ([0.1], None)],
)  # fmt: skip
def test_a_bar_is_passed_within_two_errors(
    scripts: dict[str, ModuleType], differences: list[float], passed: bool | None
) -> None:
    assert scripts["search"].no_worse(differences)["passed"] is passed


def test_a_run_goes_on_with_the_pairs_that_are_written(
    scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    script, file = scripts["search"], tmp_path / "out.json"
    told = {"traffic": "generated", "workloads": {"a": {"requests": 3}}, "methods": ["tpe"]}
    assert script.kept_rows(file, told) == []
    made = rows("tpe", {("a", 0): 0.2, ("a", 1): 0.4}, script.COUNTS)
    script.write({**script.summary(made), **told, "rows": made}, file)
    assert script.kept_rows(file, told) == made
    with pytest.raises(SystemExit, match="another traffic"):
        script.kept_rows(file, {**told, "traffic": "azure_conv_2023"})


def test_slow_samplers_name_what_they_lack(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    script = scripts["search"]
    monkeypatch.setattr(script, "NEEDED", ("torchless", "numpy"))
    with pytest.raises(SystemExit, match="2"):
        script.given_of(["--all"])
    error = capsys.readouterr().err
    assert error.startswith("--all needs torchless for Optuna's GPSampler")
    assert error.count("\n") == 1
    assert script.given_of([]).seeds == 6


def test_sobol_points_are_spread(scripts: dict[str, ModuleType]) -> None:
    """Any 16 of them, from a multiple of 16 on, have one in each of 4 by 4 squares."""
    points = scripts["search_methods"].sobol(7, 32)
    for part in (points[:16], points[16:]):
        assert len({tuple((16 * each).astype(int) // 4) for each in part}) == 16
    assert not np.array_equal(points, scripts["search_methods"].sobol(8, 32))


def test_the_sweep_is_wrong_where_the_truth_is_not(scripts: dict[str, ModuleType]) -> None:
    machine = scripts["search_truth"].MACHINE
    right, wrong = machine.calibrated.steps, machine.swept(0).steps
    decodes = (right.prefill_tokens == 0) & (right.decode_requests > 0)
    true_s = machine.times.decode_s[right.decode_requests[decodes]] + (
        machine.times.kv_token_s * right.decode_kv_tokens[decodes]
    )
    off = np.median((wrong.done_s - wrong.begun_s)[decodes] / true_s)
    assert 0.85 < off < 1.01
    assert np.array_equal(machine.swept(0).steps.done_s, wrong.done_s)
    assert not np.array_equal(machine.swept(1).steps.done_s, wrong.done_s)


def test_luck_is_shared_by_methods_and_by_nothing_else(scripts: dict[str, ModuleType]) -> None:
    truth = scripts["search_truth"]
    cell = {TOKENS: 512, SEQS: 64}
    first, again = (truth.luck(3, cell, 0).random() for _ in range(2))
    others = [truth.luck(4, cell, 0), truth.luck(3, cell, 1), truth.luck(3, truth.ANCHOR, 0)]
    assert first == again
    assert first not in [each.random() for each in others]
    assert truth.drifted(3, 0) == pytest.approx(truth.drifted(3, truth.DRIFT_TRIALS))


def test_a_study_of_two_trials_deploys_what_it_measured(scripts: dict[str, ModuleType]) -> None:
    methods, truth = scripts["search_methods"], scripts["search_truth"]
    trace = Trace.build(
        [TraceRequest(40.0 * each, 400, 4, ()) for each in range(20)],
        block_size=16,
        prefixes_known=False,
        source="few",
    )
    traffic = Traffic.of(trace, truth.SHAPE)
    logs = truth.truth(traffic, replays=1)
    own = truth.Workload.of("a", trace, traffic, logs, logs)
    assert own.regrets.min() == 0
    assert own.losses[~own.kept].min() > 1
    bench = methods.Bench(own, 0)
    search = bench.autotune(2)
    assert [row.phase for row in search.rows] == ["baseline", "screen"]
    assert search.pick in {truth.ROW_OF[methods.cell_key(row.candidate)] for row in search.rows}
    found = bench.plain("grid", 3)
    assert found[0][0] == truth.ROW_OF[methods.cell_key(truth.BASELINE)]
    assert methods.best_of(own, found) in {row for row, _ in found}
