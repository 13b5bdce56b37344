"""What is in use of a GPU's memory, and by whom, as the driver says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.hardware.nvml import Nvml


@dataclass(frozen=True, slots=True)
class Holder:
    """A process with memory of a GPU; ``used_bytes`` is None where the driver does not say."""

    pid: int
    used_bytes: int | None


class GpuMemory:
    """Answers for the GPUs of some UUIDs; without a driver, or for none, there is nothing."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._nvml = Nvml()
        self._handles = self._nvml.handles(uuids)

    def used_bytes(self) -> dict[str, int]:
        """Return the memory in use on each GPU that answers."""
        return {uuid: int(info.used) for uuid, info in self._infos().items()}

    def total_bytes(self) -> dict[str, int]:
        """Return the memory of each GPU that answers."""
        return {uuid: int(info.total) for uuid, info in self._infos().items()}

    def _infos(self) -> dict[str, Any]:
        infos = {
            uuid: self._nvml.ask("nvmlDeviceGetMemoryInfo", handle)
            for uuid, handle in self._handles.items()
        }
        return {uuid: info for uuid, info in infos.items() if info is not None}

    def holders(self) -> list[Holder]:
        """Return the processes with memory of any of the GPUs, most memory first.

        The pids are those of the host machine, also within a container.
        """
        found = [each for handle in self._handles.values() for each in holders(self._nvml, handle)]
        return sorted(found, key=lambda holder: -(holder.used_bytes or 0))


def holders(nvml: Nvml, handle: Any) -> list[Holder]:
    """Return the processes with memory of one GPU."""
    found = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
    return [
        Holder(int(each.pid), None if each.usedGpuMemory is None else int(each.usedGpuMemory))
        for each in found
    ]
