"""Ends a process when the one that started it is gone, on every level below the controller.

vLLM's EngineCore does not watch its parent, so that a killed parent leaves an engine holding the
GPU. Linux can deliver a signal instead: ``prctl(PR_SET_PDEATHSIG)``. It fires when the *thread*
that started the child ends, hence hosts and engines are started from main threads only.
"""

from __future__ import annotations

import ctypes
import os
import signal

HOST_VARIABLE = "AUTOTUNE_ENGINE_HOST"
"""Set by the engine host for its children: the pid of the host."""

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int, *, parent_pid: int) -> None:
    """Ask the kernel for ``signum`` when the parent ends; end at once if it already has.

    Raises:
        OSError: the kernel refused the request.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # The parent may have ended between our start and the request.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def arm_in_engine() -> None:
    """vLLM plug-in entry point: tie an engine process to its parent, in our engines only.

    vLLM calls it in each of its processes before a model is loaded. SIGTERM lets EngineCore and
    its workers unlink their shared memory.
    """
    host_pid = os.environ.get(HOST_VARIABLE)
    if host_pid is None or host_pid == str(os.getpid()):
        return
    die_with_parent(signal.SIGTERM, parent_pid=os.getppid())
