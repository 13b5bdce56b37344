"""The script that measures what a change of load keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from autotune.demo import resolve_trace
from tests.bench_scripts import imported


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for modules in imported(monkeypatch, ["load"]):
        traces = {"demo": resolve_trace("demo:mixed"), "gone": Path("gone.jsonl")}
        monkeypatch.setattr(modules["load"], "TRACES", traces)
        yield modules["load"]


def test_each_method_that_reaches_a_load_is_measured(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "load.json"
    assert script.main([str(out), "--loads", "0.5", "2", "--seeds", "2"]) == 0
    body = json.loads(out.read_text())
    assert list(body["traces"]) == ["demo"]
    rows = body["traces"]["demo"]["dialled"]
    assert [(row["load"], row["method"], row["requests"]) for row in rows] == [
        (0.5, "compress", 387),
        (0.5, "thin", 194),
        (2.0, "compress", 387),
        (2.0, "superpose", 774),
    ]
    recorded = body["traces"]["demo"]["recorded"]
    assert rows[2]["rate_per_s"] == pytest.approx(2 * recorded["rate_per_s"])
    assert all(row["reuse"] == pytest.approx(recorded["reuse"], abs=0.01) for row in rows)
    said = capsys.readouterr()
    assert "gone.jsonl is not there; left out" in said.err
    assert said.out.count("| demo |") == 1 + len(rows)
