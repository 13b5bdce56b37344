from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest

from autotune.hardware.nvml import Nvml
from autotune.study import check_devices
from autotune.study.check_devices import Gpu, cpu_names, gpus_used, visible_gpus

GPUS = tuple(Gpu(f"GPU-{letter}0", f"model {letter}") for letter in "abc")


class Driver:
    """A driver with three GPUs, whose names older libraries give as bytes."""

    def nvmlInit(self) -> None:  # noqa: N802
        """It works."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(GPUS)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> Gpu:  # noqa: N802
        return GPUS[number]

    def nvmlDeviceGetName(self, handle: Gpu) -> bytes:  # noqa: N802
        return handle.name.encode()

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:  # noqa: N802
        return handle.uuid


class NoDriver:
    """A machine without one."""

    def nvmlInit(self) -> None:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, GPUS),
        ("2,0", (GPUS[2], GPUS[0])),
        ("GPU-b", (GPUS[1],)),
        ("1,7,0", (GPUS[1],)),
        ("", ()),
        ("-1", ()),
    ],
)
def test_a_server_sees_the_gpus_that_its_environment_names(
    chosen: str | None, seen: tuple[Gpu, ...]
) -> None:
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_gpus(Nvml(Driver()), environ) == seen


def test_without_a_driver_there_is_none() -> None:
    assert visible_gpus(Nvml(NoDriver()), {}) == ()


@pytest.mark.parametrize(
    ("engine_args", "count"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 2}, 2),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 3),
        ({"tensor_parallel_size": "odd"}, 1),
    ],
)
def test_an_engine_takes_the_first(engine_args: dict[str, Any], count: int) -> None:
    assert gpus_used(GPUS, engine_args) == GPUS[:count]


def test_the_cpu_is_named_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_devices, "_CPUINFO", tmp_path / "cpuinfo")
    assert cpu_names() == ()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n", encoding="utf-8")
    assert cpu_names() == ("CPU",)
    (tmp_path / "cpuinfo").write_text("model name\t: Xeon\n" * 2, encoding="utf-8")
    assert cpu_names() == ("Xeon",)
