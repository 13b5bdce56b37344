"""Databases with finished studies, and the command run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.cli.main import run
from autotune.engine.protocol import Failure, TrialFailed
from tests.autotune.study.scripted import ScriptedEngines, job_of, opened, too_slow


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


Autotune = Callable[..., Ran]


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database: ``slow`` without a feasible trial, ``new`` without any, ``knee``."""
    folder = tmp_path_factory.mktemp("studies")
    with opened(folder, job_of(trials=2), ScriptedEngines(too_slow), name="slow") as running:
        running.controller.run()
    with opened(folder, job_of(), ScriptedEngines(), name="new"):
        pass
    failure = Failure("oom_start", "CUDA out of memory")
    engines = ScriptedEngines(faults={("start", 1): TrialFailed(failure)})
    with opened(folder, job_of(trials=6), engines, name="knee") as running:
        running.controller.run()
    return f"sqlite:///{folder / 'study.db'}"


@pytest.fixture
def autotune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Autotune:
    """The ``autotune`` command, with all of its error handling."""
    for name in ("AUTOTUNE_STORAGE", "OPTUNA_STORAGE"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["autotune", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            run()
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Ran(left.value.code, out, err)

    return command
