from __future__ import annotations

import pytest

from autotune.hardware.gpu_meter import GpuMeter
from autotune.hardware.nvml import Nvml
from tests.autotune.hardware.driver import FakeLibrary

PLAIN = {
    "gpu_busy_ratio": 0.97,
    "memory_used_bytes": 40.0,
    "power_w": 650.0,
    "temperature_c": 61.0,
    "sm_clock_mhz": 1980.0,
}
COUNTERS = {"sm_busy_ratio": 0.2, "tensor_busy_ratio": 0.5}


def meter(library: FakeLibrary) -> GpuMeter:
    return GpuMeter(Nvml(library), "GPU-1")


def test_counters_are_over_the_time_since_the_last_reading() -> None:
    gpu = meter(FakeLibrary())
    assert gpu.read() == PLAIN
    assert gpu.read() == gpu.read() == PLAIN | COUNTERS


def test_a_counter_that_was_missed_has_nothing_to_start_from() -> None:
    library = FakeLibrary()
    gpu = meter(library)
    gpu.read()
    library.broken = {"nvmlGpmSampleGet"}
    assert gpu.read() == PLAIN
    library.broken = set()
    assert gpu.read() == PLAIN
    assert gpu.read() == PLAIN | COUNTERS


@pytest.mark.parametrize(
    "function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmMetricsGet"]
)
def test_a_gpu_without_counters_has_the_rest(function: str) -> None:
    library = FakeLibrary()
    library.broken = {function}
    gpu = meter(library)
    assert gpu.read() == gpu.read() == PLAIN


@pytest.mark.parametrize(
    ("function", "figure"),
    [
        ("nvmlDeviceGetUtilizationRates", "gpu_busy_ratio"),
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
    ],
)
def test_a_figure_without_an_answer_is_left_out(function: str, figure: str) -> None:
    library = FakeLibrary()
    library.broken = {function}
    assert meter(library).read() == {k: v for k, v in PLAIN.items() if k != figure}


def test_samples_are_given_back() -> None:
    library = FakeLibrary()
    gpu = meter(library)
    assert len(library.allocated) == 2
    gpu.close()
    assert not library.allocated
    assert gpu.read() == PLAIN


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [(0, []), (0x1, ["gpu_idle"]), (0x204, ["sw_power_cap", "unknown_0x200"])],
)
def test_reasons_of_the_clocks_by_name(bits: int, reasons: list[str]) -> None:
    library = FakeLibrary()
    library.reasons = [bits]
    assert meter(library).clock_reasons() == frozenset(reasons)


def test_an_older_driver_knows_throttle_reasons_only() -> None:
    library = FakeLibrary()
    library.broken = {"nvmlDeviceGetCurrentClocksEventReasons"}
    assert meter(library).clock_reasons() == frozenset({"hw_thermal_slowdown"})
    library.broken.add("nvmlDeviceGetCurrentClocksThrottleReasons")
    assert meter(library).clock_reasons() is None
