"""What the first process of a container has to do, so that whatever starts ``autotune`` need not.

The kernel makes it the parent of every process whose own parent has ended, and nobody else can
wait for those; and it ignores what it has no handler for. So the command runs in a child.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

FIRST = 1
"""The number of the first process."""

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_OF_A_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_BY_THE_KERNEL = 0x80
"""``SI_KERNEL``: from the terminal, which has sent it to the child as well."""

_LEFT_S = 15.0
"""How long a janitor may take to clean up after a child that was killed."""


def become_child_of_first() -> None:
    """As the first process start a child and return in it alone; else return at once."""
    if os.getpid() == FIRST:
        look_after_child(os._exit)


def look_after_child(leave: Callable[[int], NoReturn]) -> None:
    """Start a child and return in it; stay to pass signals on and to wait for all that ends.

    Args:
        leave: called with the child's exit code, 128 and the signal that ended it, when it has.
    """
    heard = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    code = None
    while code is None:
        found = signal.sigwaitinfo(heard)
        if found.si_signo == signal.SIGCHLD:
            code = _waited_for(child)
        elif not (found.si_signo in _OF_A_TERMINAL and found.si_code == _BY_THE_KERNEL):
            os.kill(child, found.si_signo)
    if code < 0:
        code = 128 - code
        _wait_for_the_rest()
    leave(code)


def _waited_for(child: int) -> int | None:
    """Wait for all that has ended; return the child's exit code if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _wait_for_the_rest() -> None:
    """Wait until no process is left, for some time; the kernel ends them with us."""
    end_s = time.monotonic() + _LEFT_S
    with suppress(ChildProcessError):
        while (left_s := end_s - time.monotonic()) > 0:
            signal.sigtimedwait({signal.SIGCHLD}, left_s)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
