"""What the check of forecasts makes of measurements, and how it goes from one end to the other."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS, cell_key
from autotune.traffic.model import Trace, TraceRequest
from autotune.traffic.trace import save_trace

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "forecast_replays",
    "forecast_check",
    "forecast_steps",
    "forecast_study",
    "forecast_table",
    "profile_of_study",
)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    requests = [
        TraceRequest(60.0 * each, 300, 8, tuple(range(19 * each, 19 * each + 19)))
        for each in range(24)
    ]
    path = tmp_path / "few.jsonl"
    save_trace(
        Trace.build(requests, block_size=16, prefixes_known=False, source="few"),
        path,
    )
    return path


def row(tokens: int, seqs: int, ms: float, spell: str | None = None) -> dict[str, Any]:
    metrics = {"ttft_p95": ms, "tpot_p95": ms / 10, "itl_p99": ms / 5}
    return {"fidelity": "live", TOKENS: tokens, SEQS: seqs, **metrics, "spell": spell}


def test_replays_of_a_cell_count_together_and_the_baseline_is_first(
    scripts: dict[str, ModuleType], trace: Path
) -> None:
    rows = [row(512, 64, 90), row(2048, 128, 100), row(512, 64, 40), row(2048, 128, 400)]
    told = {
        "name": "few",
        "traffic": "even",
        "study": None,
        "trace": {"path": str(trace), "density": 2},
        "baseline": [2048, 128],
        "rows": [*rows, row(512, 64, 900, "it was slow")],
    }
    series = scripts["forecast_check"].Series.from_json(told)
    assert [cell[TOKENS] for cell in series.cells] == [2048, 512]
    assert series.replays == [2, 2]
    assert np.exp(series.logs[:, 0]) == pytest.approx([200, 60])
    assert np.exp(series.baseline) == pytest.approx([100, 10, 20])
    assert series.judged == slice(1, None)
    assert series.trace.duration_s == pytest.approx(23 * 0.03)
    alone = scripts["forecast_check"].Series.from_json({**told, "baseline": None})
    assert (alone.judged, alone.baseline) == (slice(0, None), None)


def test_errors_are_relative_and_ranks_are_compared(scripts: dict[str, ModuleType]) -> None:
    measured = np.log([[100.0, 10.0, 1.0], [200.0, 20.0, 2.0], [300.0, 30.0, 3.0]])
    expected = measured + np.log([[1.1, 1.0, 4.0], [0.8, 1.0, 1.0], [1.0, 1.0, 0.1]])
    found = scripts["forecast_check"].summary(measured, expected)
    assert found["ttft_p95"] == pytest.approx(
        {"median": 0.1, "worst": 0.2, "rank_correlation": 1.0}
    )
    assert found["tpot_p95"]["worst"] == pytest.approx(0)
    assert found["itl_p99"]["rank_correlation"] == pytest.approx(-1)
    few = scripts["forecast_check"].summary(measured[:2], expected[:2])
    assert few["ttft_p95"]["rank_correlation"] is None


def test_a_simulated_engine_is_forecast_from_its_sweep_and_baseline(
    scripts: dict[str, ModuleType], trace: Path, tmp_path: Path
) -> None:
    study, replays, out = (tmp_path / f"{name}.json" for name in ("study", "replays", "out"))
    given = ["--engine", "sim:cpu-tiny-llama", "--trace", str(trace), "--candidates", "3"]
    scripts["forecast_replays"].main([str(study), str(replays), *given])
    series = json.loads(replays.read_text())["series"][0]
    assert series["study"] == "study"
    cells = [(row[TOKENS], row[SEQS]) for row in series["rows"]]
    assert cells[0] == cells[-1] == tuple(series["baseline"])
    assert cells[1:4] == cells[4:7][::-1]
    scripts["forecast_check"].main([str(out), "--study", str(study), "--replays", str(replays)])
    found = json.loads(out.read_text())
    assert found["replays"] + sum(row["spell"] is not None for row in series["rows"]) == 8
    assert found["nearest_study"]["all"]["tpot_p95"]["median"] < 0.2
    assert found["nearest_study"]["by_traffic"].keys() == {str(trace)}
    base = found["studies"]["study"]["series"]["replays"]["candidates"][0]
    assert base["baseline"]
    lines = scripts["forecast_table"].tables(found)
    assert len([line for line in lines if line.startswith("| replays |")]) == 1
    assert f"| 3 of {trace} |" in "\n".join(lines)


def test_candidates_are_distinct_and_never_the_baseline(
    scripts: dict[str, ModuleType], trace: Path, tmp_path: Path
) -> None:
    script = scripts["forecast_replays"]
    given = script.parsed(["a", "b", "--engine", "sim:cpu-tiny-llama", "--trace", str(trace)])
    asked = script.asked_of(given, tmp_path)
    with script.open_supervisor(asked.settings, "forecast") as engines:
        job = script.Bench(asked, engines, tmp_path, (tmp_path / "a", tmp_path / "b")).job
    keys = {cell_key(cell) for cell in script.drawn(job, 8)}
    assert len(keys) == 8
    assert cell_key(job.baseline) not in keys
    assert len({tokens for cell in script.drawn(job, 8) for tokens in [cell[TOKENS]]}) > 4


@pytest.mark.shared
def test_recorded_steps_are_near_the_step_times_of_another_machine(
    scripts: dict[str, ModuleType],
) -> None:
    shared = ROOT / ".." / "shared" / "data" / "h200_llama8b_steps"
    check, steps = scripts["forecast_check"], scripts["forecast_steps"]
    text = (ROOT / "docs" / "results" / "h200_study_2.json").read_text()
    study = check.Study.from_json(json.loads(text))
    own = steps.recorded(shared / "async16384_1024_256_replay0.csv.gz")
    found = steps.compared(own, study, overlapping=True)
    assert abs(found["error_in_all"]) < 0.1
    assert found["median_error_of_sums"] < 0.15
    assert found["full_steps"] > 300
    assert abs(found["error_of_full_steps"]) < 0.1


def test_what_is_published_is_in_the_page_and_keeps_what_is_claimed(
    scripts: dict[str, ModuleType],
) -> None:
    folder = ROOT / "docs" / "results"
    found = json.loads((folder / "forecast_h200.json").read_text())
    page = (folder / "README.md").read_text()
    assert [line for line in scripts["forecast_table"].tables(found) if line not in page] == []
    assert found["nearest_study"]["all"]["ttft_p95"]["median"] < 0.10
    assert found["nearest_study"]["all"]["tpot_p95"]["median"] < 0.04


@pytest.mark.parametrize("name", ["h200_study_1.json", "h200_study_2.json"])
def test_kept_studies_name_no_machine(name: str) -> None:
    text = (ROOT / "docs" / "results" / name).read_text()
    assert "GPU-" not in text
    assert "/tmp" not in text
