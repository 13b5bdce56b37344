"""The devices that a server started here would use, asked without vLLM."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from autotune.hardware.nvml import Nvml

_CPUINFO = Path("/proc/cpuinfo")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver calls it."""

    uuid: str
    name: str


def visible_gpus(nvml: Nvml, environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Return the GPUs that a process with this environment sees, in its order."""
    try:
        nvml.library.nvmlInit()
    except pynvml.NVMLError:
        return ()
    count = nvml.ask("nvmlDeviceGetCount") or 0
    handles = [nvml.ask("nvmlDeviceGetHandleByIndex", number) for number in range(count)]
    gpus = [_gpu(nvml, handle) for handle in handles if handle is not None]
    chosen = environ.get(_VISIBLE)
    if chosen is None:
        return tuple(gpus)
    found = []
    for word in chosen.split(","):
        # CUDA takes no notice of what follows one that is not there.
        if (gpu := _named(word.strip(), gpus)) is None:
            break
        found.append(gpu)
    return tuple(found)


def gpus_used(gpus: tuple[Gpu, ...], engine_args: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """Return those that an engine of these arguments takes: the first, as many as it splits to."""
    sizes = [engine_args.get(name, 1) for name in _SIZES]
    return gpus[: math.prod(size for size in sizes if isinstance(size, int))]


def cpu_names() -> tuple[str, ...]:
    """Return the name of the CPU, () where the kernel does not say."""
    with suppress(OSError):
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        return (names[0] if names else "CPU",)
    return ()


def _gpu(nvml: Nvml, handle: Any) -> Gpu:
    uuid, name = (
        text.decode() if isinstance(text, bytes) else str(text)
        for text in (nvml.ask(f"nvmlDeviceGet{what}", handle) for what in ("UUID", "Name"))
    )
    return Gpu(uuid, name)


def _named(word: str, gpus: list[Gpu]) -> Gpu | None:
    if word.isdecimal():
        number = int(word)
        return gpus[number] if number < len(gpus) else None
    return next((gpu for gpu in gpus if word and gpu.uuid.startswith(word)), None)
