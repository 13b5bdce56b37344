from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from autotune.hardware.gpu_memory import GpuMemory, Holder


class Driver:
    """A driver with one GPU, which can be lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = False
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        for name in ("HandleByUUID", "MemoryInfo", "ComputeRunningProcesses"):
            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", getattr(self, name))

    def HandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1":
            raise pynvml.NVMLError_NotFound
        return uuid

    def MemoryInfo(self, _: str) -> Any:  # noqa: N802
        if self.lost:
            raise pynvml.NVMLError_GpuIsLost
        return SimpleNamespace(total=100, free=60, used=40)

    def ComputeRunningProcesses(self, _: str) -> list[Any]:  # noqa: N802
        return [
            SimpleNamespace(pid=1, usedGpuMemory=None),
            SimpleNamespace(pid=2, usedGpuMemory=30),
        ]


def test_memory_and_holders_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    gpu = GpuMemory(["GPU-1", "GPU-2"])
    assert gpu.used_bytes() == {"GPU-1": 40}
    assert gpu.total_bytes() == {"GPU-1": 100}
    assert gpu.holders() == [Holder(2, 30), Holder(1, None)]
    driver.lost = True
    assert gpu.used_bytes() == {}


def test_without_a_driver_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    gpu = GpuMemory(["GPU-1"])
    assert (gpu.used_bytes(), gpu.holders()) == ({}, [])


def test_a_cpu_has_no_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: pytest.fail("asked the driver"))
    assert GpuMemory([]).used_bytes() == {}
