"""The command ``autotune``, and ``python -m autotune``."""

from __future__ import annotations

from autotune.cli.first_process import become_child_of_first
from autotune.cli.signals import end_on_signals


def main() -> None:
    """Run the command line and leave with its exit code; a signal is answered from here on."""
    become_child_of_first()
    end_on_signals()
    # Takes tenths of a second.
    from autotune.cli.main import run

    run()


if __name__ == "__main__":
    main()
