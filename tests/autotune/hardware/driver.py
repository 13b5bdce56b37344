"""A driver without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml


class FakeLibrary:
    """Stands in for ``pynvml``: one GPU, whose counters rise with each sample.

    Attributes:
        broken: functions that the driver refuses.
        pids: processes with memory of the GPU.
        reasons: bits of the clocks' reasons, one after the other; the last one stays.
        hook: called with the name of every function before it answers.
    """

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.pids: dict[int, int | None] = {}
        self.reasons = [0]
        self.hook: Callable[[str], None] = lambda _: None
        self.allocated: list[Any] = []
        self.stamps: dict[int, int] = {}
        self._answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": self._handle,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=100, free=60, used=40),
            "nvmlDeviceGetPowerUsage": lambda _: 650_000,
            "nvmlDeviceGetTemperature": lambda _, sensor: {0: 61}[sensor],
            "nvmlDeviceGetClockInfo": lambda _, clock: {1: 1980}[clock],
            "nvmlDeviceGetCurrentClocksEventReasons": self._reasons,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x40,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.pids.items()
            ],
            "nvmlGpmQueryDeviceSupport": lambda _: SimpleNamespace(isSupportedDevice=1),
            "nvmlGpmSampleAlloc": self._alloc,
            "nvmlGpmSampleFree": self.allocated.remove,
            "nvmlGpmSampleGet": self._stamp,
            "nvmlGpmMetricsGet": self._metrics,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            return getattr(pynvml, name)

        def call(*arguments: object) -> Any:
            self.hook(name)
            if name in self.broken:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self._answers[name](*arguments)

        return call

    def _handle(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def _reasons(self, _: str) -> int:
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]

    def _alloc(self) -> Any:
        # The structure's address tells samples apart, as it does in the driver.
        sample = pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t())
        self.allocated.append(sample)
        return sample

    def _stamp(self, _: str, sample: Any) -> Any:
        self.stamps[_address(sample)] = max(self.stamps.values(), default=0) + 1
        return sample

    def _metrics(self, query: Any) -> Any:
        """Answer 10 × the metric's number, and refuse occupancy; time must have passed."""
        assert query.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        passed = self.stamps[_address(query.sample2)] - self.stamps[_address(query.sample1)]
        assert passed == 1, "the older sample comes first"
        for metric in query.metrics[: query.numMetrics]:
            refused = metric.metricId == pynvml.NVML_GPM_METRIC_SM_OCCUPANCY
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if refused else 0
            nothing = metric.metricId == pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
            metric.value = float("nan") if nothing else 10.0 * metric.metricId
        return query


def _address(sample: Any) -> int:
    return int(pynvml.addressof(sample.contents))
