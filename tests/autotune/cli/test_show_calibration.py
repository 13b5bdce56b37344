"""``autotune show --calibration``: the step times that a study keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.forked import Ran
from tests.autotune.study.simulated import KNOBS, NAME, simulated_study

pytestmark = pytest.mark.study

Show = Callable[..., Ran]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated_study(tmp_path_factory.mktemp("calibration"))


@pytest.fixture
def show(database: Path, autotune: Autotune) -> Show:
    return lambda *arguments: autotune("show", "--storage", f"sqlite:///{database}", *arguments)


def test_table_plot_and_the_ladders_of_the_study(show: Show) -> None:
    ran = show("--calibration")
    assert (ran.code, ran.err) == (0, "")
    simulated, head, _, columns, *lines = ran.out.splitlines()
    assert simulated.startswith("No engine was run, all times are those of Intel(R) Xeon(R)")
    assert head.endswith(", simulated (profile cpu-tiny-llama), vLLM 0.32.0")
    assert columns.split() == ["Tokens", "ms", "spread", "us/token", "repeats"]
    assert any(line.startswith("Step time in ms against tokens") for line in lines)
    assert lines[-3:] == [
        "Ladders of the study:",
        f"{TOKENS}: 256, 512, 1024, 2048",
        f"{SEQS}: 8, 128",
    ]


def test_json_has_every_step(show: Show) -> None:
    found = json.loads(show("--calibration", "--format", "json").out)
    assert (found["study"], found["simulated"]) == (NAME, "cpu-tiny-llama")
    assert found["ladders"] == KNOBS
    assert found["whole"] is True
    assert len(found["steps"]["done_s"]) > len(found["calibration"]["points"]) > 20
    assert {"vllm_version", "device", "seconds"} <= set(found)


def test_a_trial_has_none(show: Show) -> None:
    ran = show("0", "--calibration")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: --calibration is of a study, not of a trial\nhint: ")


def test_a_study_without_one_says_how_to_get_it(studies: str, autotune: Autotune) -> None:
    ran = autotune("show", "--storage", studies, "--study-name", "knee", "--calibration")
    assert (ran.code, ran.out) == (2, "")
    assert "error: study 'knee' measured no step times" in ran.err
    assert "--no-calibrate" in ran.err
