"""What a trial ran on and how it was measured, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.cli.tables import duration, figure, joined, plain_line
from autotune.study.counted import censored
from storage.records import TrialRecord

_SHARES = {
    "gpu_busy_ratio": "busy (NVML)",
    "sm_busy_ratio": "SMs",
    "sm_occupancy_ratio": "warps",
    "tensor_busy_ratio": "tensor",
    "dram_busy_ratio": "DRAM",
}
_STOLEN_FROM = 0.01
"""Share of the processors' time from which it is worth a warning that others had it."""

BESIDE_FROM = 0.25
"""Share of this machine's processors from which other work beside a replay is worth a note."""

_UUID_SHOWN = 12


def condition_lines(record: TrialRecord) -> list[str]:
    """Return why a replay was cut short, its engine and warm-up, and what the hardware did.

    What was not recorded, or did not answer, is left out.
    """
    engine = record.engine or {}
    hardware = engine.get("hardware")
    parts = (_cut_short(record), _engine(engine), _warmup(engine), _hardware(record, hardware))
    return [plain_line(line) for part in parts for line in part]


def beside_work(record: TrialRecord) -> float | None:
    """Return the share of all processors that others had during a replay, None if little.

    None as well where it was not recorded.
    """
    machine = ((record.engine or {}).get("hardware") or {}).get("machine") or {}
    busy, own = (_mean(machine, name) for name in ("cpu_busy_ratio", "own_cpu_ratio"))
    if busy is None or own is None or busy - own <= BESIDE_FROM:
        return None
    return busy - own


def beside_line(record: TrialRecord) -> str:
    """Say that a replay ran beside other work; '' where it did not."""
    others = beside_work(record)
    if others is None:
        return ""
    return f"beside other work, which had {_share(others)} of the processors"


def _cut_short(record: TrialRecord) -> Iterator[str]:
    cut = censored(record)
    if cut is None:
        return
    bound = (
        "without bound" if cut["bound_ms"] is None else f"at least {figure(cut['bound_ms'])} ms"
    )
    then = " under a stricter budget" if record.state == "interrupted" else ""
    yield (
        f"cut short at {figure(cut['at_s'])} s{then}: {cut['limit']} would be {bound}, of "
        f"{figure(cut['limit_ms'])} allowed; {cut['sent']} of {cut['requests']} requests had "
        f"left, {cut['ended']} had ended"
    )


def _engine(engine: Mapping[str, Any]) -> Iterator[str]:
    if "device" not in engine:
        return
    tokens, sizes = engine["kv_cache_tokens"], engine["capture_sizes"]
    cache = [] if tokens is None else [f"KV cache of {tokens} tokens"]
    graphs = [f"CUDA graphs up to {max(sizes)} tokens"] if sizes else []
    yield ", ".join([engine["device"], f"vLLM {engine['vllm_version']}", *cache, *graphs])


def _warmup(engine: Mapping[str, Any]) -> Iterator[str]:
    warmup = engine.get("warmup")
    if warmup is None:
        return
    count, drift, took = warmup["passes"], warmup["drift"], duration(warmup["seconds"])
    passes = f"{count} {'pass' if count == 1 else 'passes'}"
    steps = "" if drift is None else f"; step times at equal work moved by {100 * drift:+.1f} %"
    yield f"warm-up: {warmup['requests']} requests in {passes}, {took}{steps}"


def _hardware(record: TrialRecord, hardware: Mapping[str, Any] | None) -> Iterator[str]:
    if hardware is None:
        return
    told = [line for uuid, gpu in hardware["gpus"].items() for line in _gpu(uuid, gpu)]
    yield from told or _machine(hardware["machine"])
    if beside := beside_line(record):
        yield f"warning: this ran {beside}"
    stolen = _mean(hardware["machine"], "cpu_stolen_ratio") or 0.0
    if stolen >= _STOLEN_FROM:
        yield f"warning: the host gave {_share(stolen)} of the processors' time to others"
    yield from _others(hardware)
    if hardware["fault"] is not None:
        yield f"the hardware was not watched to the end: {hardware['fault']}"


def _gpu(uuid: str, gpu: Mapping[str, Any]) -> Iterator[str]:
    figures = gpu["figures"]
    shares = [
        f"{label} {_share(mean)}"
        for name, label in _SHARES.items()
        if (mean := _mean(figures, name)) is not None
    ]
    rest = []
    if (memory := _mean(figures, "memory_used_bytes")) is not None:
        rest.append(_gib(memory))
    if (power := figures.get("power_w")) is not None:
        rest.append(f"{power['mean']:.0f} W (most {power['max']:.0f})")
    if (heat := _mean(figures, "temperature_c")) is not None:
        rest.append(f"{heat:.0f} °C")
    if (clock := _mean(figures, "sm_clock_mhz")) is not None:
        rest.append(f"{clock:.0f} MHz")
    if shares or rest:
        yield f"{uuid[:_UUID_SHOWN]}: {', '.join([*shares, *rest])}"
    reasons = gpu["clock_reasons"] or {}
    if reasons:
        held = [f"{name} {_share(share)}" for name, share in reasons.items()]
        yield f"{uuid[:_UUID_SHOWN]} clocks, share of samples: {', '.join(held)}"


def _machine(machine: Mapping[str, Any]) -> Iterator[str]:
    labels = {"cpu_busy_ratio": "CPU busy", "own_cpu_ratio": "by the engine"}
    parts = [
        f"{label} {_share(mean)}"
        for name, label in labels.items()
        if (mean := _mean(machine, name)) is not None
    ]
    if (memory := _mean(machine, "own_memory_bytes")) is not None:
        parts.append(f"engine memory {_gib(memory)}")
    if parts:
        yield f"machine: {', '.join(parts)}"


def _others(hardware: Mapping[str, Any]) -> Iterator[str]:
    """Name who else had memory of the GPUs, where the driver's pids can be told from ours."""
    found = hardware["others"]
    if not found:
        return
    if not hardware["pids_comparable"]:
        yield "others on the GPU: not known, as the driver's pids are another namespace's"
        return
    yield f"warning: others had memory of the GPU: {joined([_other(each) for each in found])}"


def _other(neighbour: Mapping[str, Any]) -> str:
    memory = neighbour["memory_bytes"]
    size = "size unknown" if memory is None else _gib(memory)
    name = neighbour["name"] or "a process without a name"
    return f"{name} (pid {neighbour['pid']}, {size}, {neighbour['gpu_uuid'][:_UUID_SHOWN]})"


def _mean(figures: Mapping[str, Any], name: str) -> float | None:
    spread = figures.get(name)
    return None if spread is None else float(spread["mean"])


def _share(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
