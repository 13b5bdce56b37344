"""GPUs as the driver sees them: who holds their memory, errors, clocks that are held back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.hardware.gpu_memory import Holder, holders
from autotune.hardware.gpu_meter import GpuMeter
from autotune.hardware.nvml import Nvml
from autotune.study.doctor.results import Result, worst

_HELD_BACK = frozenset(
    ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
)
"""Why clocks are lower than they should be; a power cap under load is usual."""

_USED_FROM = 0.05
"""Share of a GPU's memory in use from which an engine may miss it."""

_UUID_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None where the driver does not say.

    Attributes:
        name, uuid: of the GPU.
        total_bytes, used_bytes: of its memory.
        holders: processes with memory of it, by the driver's pids.
        mig: whether it is split into instances.
        persistent: whether the driver stays loaded without a user.
        uncorrected_errors: of its memory since the driver was loaded.
        clock_reasons: why its clocks are as they are.
    """

    name: str
    uuid: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    holders: tuple[Holder, ...] = ()
    mig: bool | None = None
    persistent: bool | None = None
    uncorrected_errors: int | None = None
    clock_reasons: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """What the driver says, of itself and of the GPUs that this process may see."""

    version: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...] = ()


def gather_driver(nvml: Nvml | None = None) -> Driver:
    """Ask the driver; its version is None where there is none."""
    nvml = nvml or Nvml()
    count = nvml.count()
    if count is None:
        return Driver(None, None)
    handles = (nvml.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count))
    cuda = nvml.ask("nvmlSystemGetCudaDriverVersion")
    return Driver(
        version=_text(nvml.ask("nvmlSystemGetDriverVersion")),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(_gpu(nvml, handle) for handle in handles if handle is not None),
    )


def gpu_results(
    driver: Driver, *, needs_gpu: bool, proc: Path = Path("/proc")
) -> Iterator[Result]:
    """Judge the driver and each GPU.

    Args:
        driver: as it answered.
        needs_gpu: whether the vLLM that is installed computes on GPUs.
        proc: where processes are looked up.
    """
    if driver.version is None:
        words = "no NVIDIA driver answers"
        if needs_gpu:
            hint = "see what nvidia-smi says; a container needs --gpus"
            yield Result("driver", "fail", words, hint)
        else:
            yield Result("driver", "ok", f"{words}, and none is needed here")
        return
    yield Result("driver", "ok", f"{driver.version}, CUDA up to {driver.cuda or 'unknown'}")
    if not driver.gpus:
        yield Result("gpu", "fail", "the driver sees no GPU", "see what nvidia-smi says")
    for gpu in driver.gpus:
        yield from _judged(gpu, proc)


def _judged(gpu: Gpu, proc: Path) -> Iterator[Result]:
    name = f"gpu {gpu.uuid[:_UUID_SHOWN]}"
    problems = list(_problems(gpu))
    words = ", ".join([gpu.name, *_facts(gpu), *(each.words for each in problems)])
    hint = problems[0].hint if problems else ""
    yield Result(name, worst(problems), words, hint)
    if _in_use(gpu):
        yield _memory(f"{name} memory", gpu, proc)


def _facts(gpu: Gpu) -> Iterator[str]:
    if gpu.total_bytes is not None and gpu.used_bytes is not None:
        yield f"{_gib(gpu.used_bytes)} of {_gib(gpu.total_bytes)} in use"
    if gpu.persistent is not None:
        yield "persistent" if gpu.persistent else "not persistent"


def _problems(gpu: Gpu) -> Iterator[Result]:
    """Yield what is wrong, the worst first."""
    if gpu.uncorrected_errors:
        hint = "reset or replace the GPU: results may be wrong, and engines crash"
        words = f"{gpu.uncorrected_errors} uncorrected memory errors"
        yield Result("errors", "fail", words, hint)
    if gpu.mig:
        yield Result("MIG", "warn", "MIG is on", "engines see instances, by their own UUIDs")
    if held := sorted((gpu.clock_reasons or frozenset()) & _HELD_BACK):
        words = f"clocks held back: {', '.join(held)}"
        yield Result("clocks", "warn", words, "see to its cooling and power first")


def _in_use(gpu: Gpu) -> bool:
    if gpu.used_bytes is None or not gpu.total_bytes:
        return bool(gpu.holders)
    return gpu.used_bytes > _USED_FROM * gpu.total_bytes


def _memory(name: str, gpu: Gpu, proc: Path) -> Result:
    who = [_holder(each, proc) for each in gpu.holders] or ["a process that the driver hides"]
    return Result(
        name,
        "warn",
        f"held by {', '.join(who)}",
        "end it first, or give less gpu_memory_utilization",
    )


def _holder(holder: Holder, proc: Path) -> str:
    try:
        name = (proc / str(holder.pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "a process"
    size = "" if holder.used_bytes is None else f", {_gib(holder.used_bytes)}"
    return f"{name} (pid {holder.pid}{size})"


def _gpu(nvml: Nvml, handle: Any) -> Gpu:
    library = nvml.library
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    persistent = nvml.ask("nvmlDeviceGetPersistenceMode", handle)
    errors = nvml.ask(
        "nvmlDeviceGetTotalEccErrors",
        handle,
        library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        library.NVML_VOLATILE_ECC,
    )
    meter = GpuMeter(nvml, handle)
    try:
        reasons = meter.clock_reasons()
    finally:
        meter.close()
    return Gpu(
        name=_text(nvml.ask("nvmlDeviceGetName", handle)) or "a GPU without a name",
        uuid=_text(nvml.ask("nvmlDeviceGetUUID", handle)) or "without a UUID",
        total_bytes=None if memory is None else int(memory.total),
        used_bytes=None if memory is None else int(memory.used),
        holders=tuple(holders(nvml, handle)),
        mig=None if mig is None else bool(mig[0]),
        persistent=None if persistent is None else bool(persistent),
        uncorrected_errors=None if errors is None else int(errors),
        clock_reasons=reasons,
    )


def _text(answer: str | bytes | None) -> str | None:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
