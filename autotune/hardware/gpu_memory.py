"""What is in use of a GPU's memory, and by whom, as the driver says.

Asked through NVML, which makes no CUDA context: the controller must never have one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True, slots=True)
class Holder:
    """A process with memory of a GPU; ``used_bytes`` is None where the driver does not say."""

    pid: int
    used_bytes: int | None


class GpuMemory:
    """Answers for the GPUs of some UUIDs; without a driver, or for none, there is nothing."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._handles: dict[str, Any] = {}
        if uuids and _ask(pynvml.nvmlInit, default=False) is not False:
            found = {uuid: _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid) for uuid in uuids}
            self._handles = {uuid: handle for uuid, handle in found.items() if handle is not None}

    def used_bytes(self) -> dict[str, int]:
        """Return the memory in use on each GPU that answers."""
        infos = {
            uuid: _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
            for uuid, handle in self._handles.items()
        }
        return {uuid: int(info.used) for uuid, info in infos.items() if info is not None}

    def holders(self) -> list[Holder]:
        """Return the processes with memory of any of the GPUs, most memory first.

        The pids are those of the host machine, also within a container.
        """
        found: list[Holder] = []
        for handle in self._handles.values():
            for each in _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []:
                used = each.usedGpuMemory
                found.append(Holder(int(each.pid), None if used is None else int(used)))
        return sorted(found, key=lambda holder: -(holder.used_bytes or 0))


def _ask(call: Callable[..., Any], *arguments: object, default: Any = None) -> Any:
    """Return what NVML answers, ``default`` where it cannot: a GPU may be lost at any time."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return default
