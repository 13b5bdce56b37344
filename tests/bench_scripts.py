"""Modules of scripts/bench, which are no package, for tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts" / "bench"


def imported(
    monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> Iterator[dict[str, ModuleType]]:
    """Yield the modules by name, and forget them afterwards."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        del sys.modules[name]
