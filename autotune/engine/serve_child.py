"""Becomes a server that ends with the process that started it.

Run as ``python -m autotune.engine.serve_child PARENT COMMAND…``: it asks the kernel to be killed
when PARENT ends, which outlives the change of program, and marks itself as the host of the
engine, so that the processes of vLLM below it do the same.
"""

from __future__ import annotations

import os
import signal
import sys

from autotune.engine.parent_death import HOST_VARIABLE, die_with_parent


def main() -> None:
    """Entry point of the child process; does not return."""
    parent_pid, *command = sys.argv[1:]
    die_with_parent(signal.SIGKILL, parent_pid=int(parent_pid))
    os.environ[HOST_VARIABLE] = str(os.getpid())
    os.execvp(command[0], command)  # noqa: S606 - an argument list of ours.


if __name__ == "__main__":
    main()
