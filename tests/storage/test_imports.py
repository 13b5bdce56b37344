from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.wire

_SCRIPT = """
import sys
from storage.repository import open_repository
for create in (True, False):
    with open_repository(sys.argv[1], create=create) as repository:
        assert repository.studies() == ()
print(*sorted({"alembic", "optuna", "vllm", "torch"} & sys.modules.keys()))
"""


def test_reading_a_study_loads_neither_optuna_nor_alembic(url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT, url],
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == []
