"""Cleans up after a controller that was killed.

Started by the controller as ``python -m autotune.engine.janitor FOLDER``, with a pipe as standard
input whose other end only the controller has. When it ends, however that happens, the pipe does;
then the janitor ends every process of the run that the kernel's parent-death signals have not
ended, a stopped or stuck one too, unlinks its shared memory and removes its folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from autotune.engine.run_folder import RunFolder

_DISMISSED_S = 5.0


def start_janitor(folder: Path) -> subprocess.Popen[bytes]:
    """Start the janitor of a run; it ends soon after the pipe to it is closed."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Out of reach of what ends the terminal or the group of the controller.
        start_new_session=True,
    )


def dismiss(janitor: subprocess.Popen[bytes]) -> None:
    """Let the janitor of a run that has ended go, and make sure that it does."""
    try:
        janitor.communicate(timeout=_DISMISSED_S)
    except subprocess.TimeoutExpired:
        # Somebody has stopped it.
        janitor.kill()
        janitor.communicate()


def main() -> None:
    """Wait for the end of the pipe, then clean up."""
    # What ends the terminal or the job must not end the one who cleans up after it.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    path = Path(sys.argv[1])
    while os.read(0, 1):
        pass
    if path.is_dir():
        folder = RunFolder.found(path)
        folder.end_all()
        folder.remove()


if __name__ == "__main__":
    main()
