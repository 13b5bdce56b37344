"""An event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Takes a wait for as much passed time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits, and nothing will ever happen")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def work(self, duration_s: float) -> None:
        """Let time pass without giving the loop a chance to run anything."""
        self._jumping.now_s += duration_s


def run(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, and see to it that no task is left behind."""
    try:
        result = loop.run_until_complete(main)
        assert not asyncio.all_tasks(loop)
        return result
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
