"""Faults of the bench that need neither root nor patience, once each, on simulated engines."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench_scripts import imported

pytestmark = pytest.mark.study

ROOT = str(Path(__file__).resolve().parents[1])
MODULES = ("faulty", "faults_ours", "faults_signals", "faults_server", "faults_vllm", "faults")

Bench = dict[str, ModuleType]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    # For processes that run elsewhere.
    monkeypatch.setenv("PYTHONPATH", ROOT)
    monkeypatch.setenv("AUTOTUNE_COMPILE", "0")
    yield from imported(monkeypatch, MODULES)


def study_of(bench: Bench, folder: Path, *, trials: int = 3) -> Any:
    faulty = bench["faulty"]
    settings = {**faulty.SIMULATED, "engine": "sim:cpu-tiny-llama", "window": "0:1"}
    return faulty.Study(folder, None, settings, trials=trials)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("two controllers on one study", 75, "error: study 'night' is in use by process"),
        ("a second SIGTERM while the first is heeded", 143, "SIGTERM: stopping"),
        ("database file removed", 4, "was deleted or replaced while in use"),
    ],
)
def test_a_fault_costs_nothing_that_was_measured(
    bench: Bench, tmp_path: Path, name: str, code: int, words: str
) -> None:
    (fault,) = (each for each in bench["faults_ours"].FAULTS if each.name == name)
    trials = 5 if "removed" in name else 3
    row = bench["faults"].injected(fault, study_of(bench, tmp_path, trials=trials), "sqlite")
    assert (row.problems, row.ok, row.lost, row.exit_code) == ([], True, 0, code)
    assert words in row.words


def test_a_kill_costs_the_running_trial_alone(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = ("store", "tell")
    monkeypatch.setattr(bench["faults_signals"], "PHASES", phases)
    study = study_of(bench, tmp_path)
    seen = dict(bench["faults_signals"].interrupted(study, signal.SIGKILL))
    assert {name: each.problems for name, each in seen.items()} == {
        f"SIGKILL in {phase}": [] for phase in phases
    }
    assert bench["faults"].again(study) == []
    assert study.measured_twice() == []


def test_a_measurement_that_is_not_stored_counts_as_lost(bench: Bench, tmp_path: Path) -> None:
    study = study_of(bench, tmp_path)
    study.journal.write_text("kept 0 2026-11-30T19:00:00\nstored 0 2026-11-30T19:00:00\n")
    assert (study.lost(), study.measured_twice()) == ([0], [])
    study.journal.write_text("kept 0 2026-11-30T19:00:00\nkept 0 2026-11-30T20:00:00\n")
    assert study.measured_twice() == [0]


def test_what_runs_on_is_found_by_its_mark(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench["faulty"], "GONE_WITHIN_S", 0.0)
    study = study_of(bench, tmp_path)
    assert study.orphans() == []
    process, _, _ = study._started(["sleep", "60"], ())
    (found,) = study.orphans()
    process.kill()
    process.wait(10)
    assert f"process {process.pid} (sleep 60) still runs" == found


def test_rows_that_are_not_made_anew_stay(bench: Bench, tmp_path: Path) -> None:
    faults, output = bench["faults"], tmp_path / "out.json"
    kept = faults.Row("one", "sqlite", True, 0, 0, "", 1.0, [])
    faults.Bench(output, "")._note(kept)
    again = faults.Bench(output, "two")
    again._note(faults.Row("two", "sqlite", False, 1, 4, "", 1.0, ["lost"]))
    rows = faults.earlier(output)
    assert [(each.fault, each.ok) for each in rows.values()] == [("one", True), ("two", False)]
    assert '"ok": 1,\n "of": 2,\n "lost": 1,' in output.read_text()
