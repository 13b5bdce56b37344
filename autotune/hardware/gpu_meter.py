"""What one GPU does: figures of the driver, and its profiling counters where it has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autotune.hardware.nvml import Nvml

_COUNTERS: Mapping[str, str] = {
    "sm_busy_ratio": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy_ratio": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_busy_ratio": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_busy_ratio": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}

GPU_FIGURES = (
    "gpu_busy_ratio",
    "memory_used_bytes",
    "power_w",
    "temperature_c",
    "sm_clock_mhz",
    *_COUNTERS,
)

# The bits of nvml.h, under names that outlive its change from throttle to event reasons.
_CLOCK_REASONS: Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class GpuMeter:
    """Reads one GPU again and again, each figure only where the driver answers."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._counters = _Counters(nvml, handle)

    def read(self) -> dict[str, float]:
        """Return the figures of ``GPU_FIGURES`` that there are.

        The profiling counters are over the time since the last reading, so that the first
        has none.
        """
        found = {}
        if (busy := self._ask("UtilizationRates")) is not None:
            found["gpu_busy_ratio"] = busy.gpu / 100
        if (memory := self._ask("MemoryInfo")) is not None:
            found["memory_used_bytes"] = float(memory.used)
        if (power_mw := self._ask("PowerUsage")) is not None:
            found["power_w"] = power_mw / 1000
        library = self._nvml.library
        if (celsius := self._ask("Temperature", library.NVML_TEMPERATURE_GPU)) is not None:
            found["temperature_c"] = float(celsius)
        if (clock := self._ask("ClockInfo", library.NVML_CLOCK_SM)) is not None:
            found["sm_clock_mhz"] = float(clock)
        return found | self._counters.read()

    def clock_reasons(self) -> frozenset[str] | None:
        """Return why its clocks are as they are; None where the driver does not say."""
        bits = self._ask("CurrentClocksEventReasons")
        if bits is None:
            bits = self._ask("CurrentClocksThrottleReasons")
        if bits is None:
            return None
        single = [1 << place for place in range(int(bits).bit_length()) if bits >> place & 1]
        return frozenset(_CLOCK_REASONS.get(bit, f"unknown_{bit:#x}") for bit in single)

    def close(self) -> None:
        """Give the driver's samples back; the meter is of no use afterwards."""
        self._counters.close()

    def _ask(self, what: str, *arguments: object) -> Any:
        return self._nvml.ask(f"nvmlDeviceGet{what}", self._handle, *arguments)


class _Counters:
    """GPU performance monitoring of Hopper and later: counters between two samples."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: list[Any] = []
        self._begun = False
        support = nvml.ask("nvmlGpmQueryDeviceSupport", handle)
        if support is not None and support.isSupportedDevice:
            allocated = [nvml.ask("nvmlGpmSampleAlloc") for _ in range(2)]
            self._samples = [each for each in allocated if each is not None]

    def read(self) -> dict[str, float]:
        if len(self._samples) < 2:
            return {}
        self._samples.reverse()
        before, now = self._samples
        had_one = self._begun
        self._begun = self._nvml.ask("nvmlGpmSampleGet", self._handle, now) is not None
        return self._between(before, now) if had_one and self._begun else {}

    def _between(self, before: Any, now: Any) -> dict[str, float]:
        library = self._nvml.library
        query = library.c_nvmlGpmMetricsGet_t()
        query.version = library.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(_COUNTERS)
        query.sample1, query.sample2 = before, now
        for place, number in enumerate(_COUNTERS.values()):
            query.metrics[place].metricId = getattr(library, number)
        if self._nvml.ask("nvmlGpmMetricsGet", query) is None:
            return {}
        answers = zip(_COUNTERS, query.metrics, strict=False)
        return {
            name: answer.value / 100
            for name, answer in answers
            if answer.nvmlReturn == library.NVML_SUCCESS and math.isfinite(answer.value)
        }

    def close(self) -> None:
        for each in self._samples:
            self._nvml.ask("nvmlGpmSampleFree", each)
        self._samples = []
