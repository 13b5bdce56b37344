from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autotune.cli.main import app
from autotune.errors import TraceError, UsageError
from autotune.traffic.load import METHODS
from autotune.traffic.trace import load_trace


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["trace", "load", "demo:mixed", *map(str, words)])


@pytest.mark.parametrize(
    ("load", "method", "requests", "said"),
    [
        ("1.4", "auto", 542, "Load 1.4 by superposing copies: 11.4 → 15.9 requests/s"),
        ("0.5", "auto", 194, "Load 0.5 by thinning: 11.4 → "),
        ("2", "compress", 387, "Load 2 by compressing time: 11.4 → 22.8 requests/s"),
    ],
)
def test_load_writes_a_trace_and_says_what_changed(
    tmp_path: Path, load: str, method: str, requests: int, said: str
) -> None:
    result = run(tmp_path / "a.jsonl", "--load", load, "--method", method)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'a.jsonl'}\n"
    assert said in result.stderr
    written = load_trace(tmp_path / "a.jsonl")
    assert len(written.requests) == requests
    assert json.loads((tmp_path / "a.meta.json").read_text())["requests"] == requests


def test_the_seed_decides(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    for name, seed in zip(names, ("0", "0", "1"), strict=True):
        run(tmp_path / f"{name}.jsonl", "--load", "0.5", "--seed", seed)
    one, same, other = ((tmp_path / f"{name}.jsonl").read_bytes() for name in names)
    assert one == same
    assert one != other


@pytest.mark.parametrize("load", ["0", "-1", "nan", "inf", "1e9"])
def test_no_load_at_all_is_refused_before_reading(tmp_path: Path, load: str) -> None:
    error = run(tmp_path / "a.jsonl", "--load", load).exception
    assert isinstance(error, UsageError)
    assert "must be above 0 and at most 100" in error.message


def test_a_load_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    error = run(tmp_path / "a.jsonl", "--load", "0.0001").exception
    assert isinstance(error, TraceError)
    assert error.message.endswith("load 0.0001 leaves none of 387 requests")
    assert not (tmp_path / "a.jsonl").exists()


def test_every_method_can_be_named(tmp_path: Path) -> None:
    for method in METHODS:
        load = "0.5" if method == "thin" else "2"
        assert run(tmp_path / "a.jsonl", "--load", load, "--method", method).exit_code == 0
