"""Databases with finished studies, and the command run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main

from autotune.cli.main import run
from tests.autotune.cli.forked import Ran
from tests.autotune.cli.studies import make_studies

Autotune = Callable[..., Ran]


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database: ``slow`` without a feasible trial, ``new`` without any, ``knee``."""
    return f"sqlite:///{make_studies(tmp_path_factory.mktemp('studies'))}"


@pytest.fixture(autouse=True, scope="session")
def _commands_are_made_once() -> Iterator[None]:
    """Typer makes them anew for every call, which is half of what most of them cost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


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
