"""Programs in processes of their own, for what tests do not import themselves, such as vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.autotune.engine.tiny import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 110


def told_by(*arguments: str, environ: Mapping[str, str] = ENVIRONMENT) -> Any:
    """Run Python with these arguments in the root of the checkout, and read the JSON it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)
