"""Reports of whole studies on the simulated engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune import lease
from autotune.cli.report_words import MOST_LINES
from tests.autotune.cli.conftest import Autotune

pytestmark = pytest.mark.study


@pytest.fixture(autouse=True)
def fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lease, "LOCKS", tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)


def tune(autotune: Autotune, *arguments: str) -> int:
    return autotune(
        "tune", "--engine", "sim:cpu-tiny-llama", "--trace", "demo:mixed", "--window", "0:1",
        "--budget", "ttft_p95:500 tpot_p95:60", "--classes", "", *arguments,
    ).code  # fmt: skip


def test_a_finished_study_has_the_figures_of_the_other_commands(autotune: Autotune) -> None:
    assert tune(autotune, "--trials", "6") == 0
    ran = autotune("report")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 80
    assert "of simulated time" in ran.out
    assert "All this is a forecast" in ran.out
    shown = json.loads(autotune("report", "--format", "json").out)
    assert shown["simulated"] == "cpu-tiny-llama"
    assert shown["verdict"] == json.loads(autotune("show", "--format", "json").out)["verdict"]
    assert shown["course"]["working"] is None
    best = json.loads(autotune("best", "--format", "json").out)
    for margin in shown["margins"]:
        assert margin["value_ms"] == best["metrics"][margin["limit"]]
        assert margin["upper_ms"] == best["intervals"][margin["limit"]][1]
    trials = json.loads(autotune("trials", "--format", "json").out)
    assert sum(each["trials"] for each in shown["spending"]["trials"]) == len(trials)
    assert shown["spending"]["seconds"]["replay_s"] == pytest.approx(
        sum(each["timings"]["replay_s"] for each in trials)
    )


def test_a_study_that_goes_on_tells_its_course(autotune: Autotune) -> None:
    assert tune(autotune, "--trials", "2") == 0
    assert tune(autotune, "--trials", "3") == 0
    shown = json.loads(autotune("report", "--format", "json").out)
    assert len(shown["course"]["resumed"]) == 1
    assert shown["course"]["ended_by"] == "trials"
    assert "resumed once" in " ".join(autotune("report").out.split())
    again = json.loads(autotune("report", "--budget", "ttft_p95:1", "--format", "json").out)
    assert again["verdict"]["code"] == "nothing_feasible"
