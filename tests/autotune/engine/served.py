"""Stand-ins of ``vllm serve`` for tests: see ``fake_vllm``."""

from __future__ import annotations

import sys
from pathlib import Path

FAKE = Path(__file__).with_name("fake_vllm.py")


def fake(fault: str = "none") -> tuple[str, ...]:
    """Return the command that starts a stand-in with a fault."""
    return (sys.executable, "-S", *_with_packages(), fault, "serve")


def _with_packages() -> tuple[str, ...]:
    """Return how it finds YAML without the start-up of all that is installed."""
    import yaml

    folder = str(Path(yaml.__file__).resolve().parents[1])
    source = "import runpy, sys; sys.path.append(sys.argv.pop(1)); sys.argv.pop(0); "
    source += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return ("-c", source, folder, str(FAKE))
