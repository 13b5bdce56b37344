"""``python -m autotune``."""

from __future__ import annotations

from autotune.cli.main import run

if __name__ == "__main__":
    run()
