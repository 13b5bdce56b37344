"""The driver, asked through NVML, which makes no CUDA context: the controller must have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pynvml


class Nvml:
    """Asks NVML, and takes no answer for one: a GPU may be lost at any time.

    Args:
        library: stands in for ``pynvml``.
    """

    def __init__(self, library: Any = pynvml) -> None:
        self.library = library

    def ask(self, function: str, *arguments: object) -> Any:
        """Return the answer, None where this driver, GPU or library has none."""
        call = getattr(self.library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
            return None

    def handles(self, uuids: Sequence[str]) -> dict[str, Any]:
        """Return the handles of the GPUs that the driver knows; for no UUIDs it is not asked."""
        if not uuids or not self._started():
            return {}
        found = {uuid: self.ask("nvmlDeviceGetHandleByUUID", uuid) for uuid in uuids}
        return {uuid: handle for uuid, handle in found.items() if handle is not None}

    def count(self) -> int | None:
        """Return how many GPUs the driver shows, None without a driver."""
        if not self._started():
            return None
        found = self.ask("nvmlDeviceGetCount")
        return None if found is None else int(found)

    def _started(self) -> bool:
        try:
            self.library.nvmlInit()
        except pynvml.NVMLError:
            return False
        return True
