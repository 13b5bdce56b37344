"""How the processes ended that an engine is made of."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

_ENDING_S = 0.5
_LOOK_EVERY_S = 0.2


class Children:
    """The processes that an engine is made of, as far as they are children of this one."""

    def __init__(self) -> None:
        self._seen: set[BaseProcess] = set()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Within the block an engine starts, which may end, and forget, its own processes."""
        self._seen = set()
        done = threading.Event()

        def look() -> None:
            while not done.wait(_LOOK_EVERY_S):
                self._seen |= set(multiprocessing.active_children())

        thread = threading.Thread(target=look, name="autotune-children", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._seen |= set(multiprocessing.active_children())
            done.set()
            thread.join()

    def endings(self) -> list[str]:
        """Say how those processes ended that have."""
        found = []
        for child in self._seen:
            # vLLM learns of an end by the pipe, a moment before the process can be waited for.
            child.join(_ENDING_S)
            if (status := child.exitcode) is not None:
                found.append(f"{child.name} {how_ended(status)}")
        return found


def how_ended(status: int) -> str:
    """Return the end of a process in words, from its status as ``subprocess`` has it."""
    if status >= 0:
        return f"ended with status {status}"
    # The signals between SIGRTMIN and SIGRTMAX have no names.
    names = {int(each): each.name for each in signal.Signals}
    return f"ended by {names.get(-status, f'signal {-status}')}"
