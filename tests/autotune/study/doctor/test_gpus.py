from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from autotune.hardware.gpu_memory import Holder
from autotune.hardware.nvml import Nvml
from autotune.study.doctor.gpus import Driver, Gpu, gather_driver, gpu_results
from autotune.study.doctor.results import Result

GPU = Gpu(
    name="NVIDIA H200",
    uuid="GPU-0123456789abcdef",
    total_bytes=140 * 2**30,
    used_bytes=2**29,
    mig=False,
    persistent=True,
    uncorrected_errors=0,
    clock_reasons=frozenset(["gpu_idle"]),
)


def results(gpu: Gpu, proc: Path = Path("/proc")) -> list[Result]:
    driver = Driver("580.1", "13.0", (gpu,))
    first, *rest = gpu_results(driver, needs_gpu=True, proc=proc)
    assert first == Result("driver", "ok", "580.1, CUDA up to 13.0")
    return rest


def test_an_idle_gpu_is_well() -> None:
    (found,) = results(GPU)
    assert found.state == "ok"
    assert found.words == "NVIDIA H200, 0.5 GiB of 140.0 GiB in use, persistent"


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"uncorrected_errors": 3}, "fail", "3 uncorrected memory errors"),
        ({"mig": True}, "warn", "MIG is on"),
        ({"clock_reasons": frozenset(["hw_thermal_slowdown"])}, "warn", "hw_thermal_slowdown"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_said(changes: dict[str, Any], state: str, words: str) -> None:
    (found,) = results(replace(GPU, **changes))
    assert (found.state, words in found.words) == (state, True)
    assert found.hint


def test_whoever_holds_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "comm").write_text("python3\n")
    held = replace(
        GPU, used_bytes=70 * 2**30, holders=(Holder(4711, 69 * 2**30), Holder(12, None))
    )
    _, memory = results(held, tmp_path)
    assert memory.state == "warn"
    assert memory.words == "held by python3 (pid 4711, 69.0 GiB), a process (pid 12)"


@pytest.mark.parametrize(("needs_gpu", "state"), [(True, "fail"), (False, "ok")])
def test_a_driver_is_missed_only_where_it_is_needed(needs_gpu: bool, state: str) -> None:
    (found,) = gpu_results(Driver(None, None), needs_gpu=needs_gpu)
    assert found.state == state


def test_the_driver_is_asked_and_what_it_does_not_know_is_none() -> None:
    def no_answer(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    library = SimpleNamespace(
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlSystemGetCudaDriverVersion=lambda: 13010,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetName=lambda _: b"NVIDIA H200",
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetMigMode=no_answer,
        nvmlDeviceGetPersistenceMode=lambda _: 1,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=100, used=10),
    )
    found = gather_driver(Nvml(library))
    assert (found.version, found.cuda) == ("580.1", "13.1")
    gpu = Gpu("NVIDIA H200", "GPU-1", 100, 10, persistent=True)
    assert found.gpus == (gpu,)
    library.nvmlInit = no_answer
    assert gather_driver(Nvml(library)) == Driver(None, None)
