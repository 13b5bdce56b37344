"""Holds memory of a GPU as somebody else's process would, until its input ends.

Run as a script it is that process; ``Holder`` starts and asks it from another. Each line of its
input asks for more: a number of bytes, or ``rest`` for all that is free. It answers each, and its
start, with the bytes that it holds, as a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

_LARGEST_BYTES = 2**30
_LEAST_BYTES = 2**20
REST = 2**62


def take(
    allocate: Callable[[int], Any], wanted_bytes: int, refused: type[Exception]
) -> tuple[list[Any], int]:
    """Allocate in ever smaller blocks until there is enough, or nothing left.

    Returns:
        The blocks, and their bytes together.
    """
    blocks: list[Any] = []
    held_bytes, size = 0, _LARGEST_BYTES
    while size >= _LEAST_BYTES and held_bytes < wanted_bytes:
        try:
            block_bytes = min(size, wanted_bytes - held_bytes)
            blocks.append(allocate(block_bytes))
        except refused:
            size //= 2
        else:
            held_bytes += block_bytes
    return blocks, held_bytes


class Holder:
    """A process of its own that holds memory of the first GPU."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def take(self, wanted: str) -> int:
        """Hold so many bytes more, or the ``rest``; return what is held."""
        print(wanted, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> int:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            self._end()
            raise RuntimeError("the holder has ended: is there a torch with CUDA?")
        return int(json.loads(line)["held_bytes"])


def named(text: str | None, held: Mapping[str, Any]) -> bool:
    """Whether a text names the holder, by our number or by the driver's."""
    words = (text or "").replace(",", " ").replace(")", " ").split()
    return any(str(pid) in words for pid in (held.get("pid"), *held.get("driver_pids", ())))


def main() -> None:
    # Each block is the driver's own then, and nothing is rounded up.
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    import torch

    def allocate(size_bytes: int) -> Any:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    blocks = [allocate(1)]
    held_bytes = 0
    print(json.dumps({"held_bytes": held_bytes}), flush=True)
    for line in sys.stdin:
        wanted_bytes = REST if line.strip() == "rest" else int(line)
        # Without its cache torch raises the driver's AcceleratorError, else OutOfMemoryError.
        more, more_bytes = take(allocate, wanted_bytes, RuntimeError)
        blocks += more
        held_bytes += more_bytes
        print(json.dumps({"held_bytes": held_bytes}), flush=True)


if __name__ == "__main__":
    main()
