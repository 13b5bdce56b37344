"""Ends a process when the one that started it is gone, on every level below the controller.

vLLM's EngineCore does not watch its parent, so that a killed parent leaves an engine holding the
GPU. Linux can deliver a signal instead: ``prctl(PR_SET_PDEATHSIG)``. It fires when the *thread*
that started the child ends, hence hosts and engines are started from main threads only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

from autotune.engine.processes import is_running

HOST_VARIABLE = "AUTOTUNE_ENGINE_HOST"
"""Set by the engine host for its children: the pid of the host."""

GRACE_S = 10.0
"""Twice what a clean stop takes: an engine that was asked to end and did not is killed then."""

_PR_SET_PDEATHSIG = 1
_POLL_S = 1.0
_THREAD = "autotune-parent-death"


def become_host() -> None:
    """Mark this process as the engine host, so that the engines it starts end with it.

    A process that multiprocessing spawns arms itself as it imports its parent's main module, see
    the end of ``autotune.engine.host``; any other that vLLM starts, as it loads the plug-ins. A
    forked one does neither, hence the hook.
    """
    os.environ[HOST_VARIABLE] = str(os.getpid())
    os.register_at_fork(after_in_child=arm_in_engine)


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
    """Tie an engine process to its parent, in our engines only; safe to repeat.

    Also vLLM's plug-in entry point: it is called in each of its processes before a model is
    loaded. SIGTERM lets EngineCore and its workers unlink their shared memory. EngineCore only
    takes a note of it while it loads a model, and cannot see it inside a stuck kernel, so SIGKILL
    follows after ``GRACE_S``.
    """
    host_pid = os.environ.get(HOST_VARIABLE)
    if host_pid is None or host_pid == str(os.getpid()):
        return
    # A fork takes no threads along, so this also tells whether it was this process.
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        return
    parent_pid = os.getppid()
    die_with_parent(signal.SIGTERM, parent_pid=parent_pid)
    # The host may have ended while we were starting, and then our parent is already another.
    if not is_running(int(host_pid)):
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(
        target=_kill_after_parent, args=(parent_pid,), name=_THREAD, daemon=True
    ).start()


def _kill_after_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
