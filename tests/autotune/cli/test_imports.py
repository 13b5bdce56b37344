"""What a command may not import, in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = (
    "vllm", "torch", "optuna", "openai", "sqlalchemy", "numpy", "alembic", "yaml",
    "rich.progress", "rich.live",
)  # fmt: skip
COMMANDS = ("", "tune", "best", "trials", "show", "studies", "replay", "trace")
CODE = """
import sys
from autotune.cli.main import run
sys.argv = ["autotune", *sys.argv[1:]]
try:
    run()
except SystemExit as left:
    assert left.code == 0, left.code
print(*sorted(sys.modules), file=sys.stderr)
"""
WITHOUT_VLLM = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vllm":
            raise ModuleNotFoundError("No module named 'vllm'", name="vllm")
        return None


sys.meta_path.insert(0, Blocker())
"""


def modules_after(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_light(command: str) -> None:
    loaded = modules_after(*filter(None, [command]), "--help")
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["best", "trials"])
def test_reading_a_study_needs_no_engine_and_no_optimiser(studies: str, command: str) -> None:
    loaded = modules_after(command, "--storage", studies)
    assert loaded.isdisjoint({"vllm", "torch", "optuna", "openai", "alembic"})


def test_without_vllm_tuning_says_how_to_install_it(tmp_path: Path) -> None:
    """The engine host is a process of its own, so the module is hidden from every interpreter."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_VLLM)
    done = subprocess.run(
        [
            sys.executable, "-m", "autotune", "tune", "--model", "demo:tiny-llama",
            "--trace", "demo:mixed",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stdout == ""
    assert "error: vLLM is not installed in this environment" in done.stderr
    assert "hint: run scripts/install, or pip install 'vllm-autotune[vllm]'" in done.stderr
