"""What a command may not import, in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.core
import typer.main

from autotune.cli.main import app

pytestmark = pytest.mark.wire

ROOT = Path(__file__).resolve().parents[3]
HEAVY = (
    "vllm", "torch", "optuna", "openai", "sqlalchemy", "numpy", "alembic", "yaml",
    "rich.progress", "rich.live",
)  # fmt: skip
CODE = """
import sys
from autotune.cli.main import run
for line in sys.argv[1:]:
    sys.argv = ["autotune", *line.split()]
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


def modules_after(*lines: str) -> set[str]:
    """Return what is loaded after these commands ran in one fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *lines],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stderr.splitlines()[-1].split())


def test_help_is_light() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    loaded = modules_after("--help", *(f"{name} --help" for name in group.commands))
    assert loaded.isdisjoint(HEAVY)


def test_reading_a_study_needs_no_engine_and_no_optimiser(studies: str) -> None:
    loaded = modules_after(*(f"{name} --storage {studies}" for name in ("best", "trials")))
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
