"""Looks at the hardware while a replay runs, from a thread of the controller."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pynvml

from autotune.hardware.gpu_memory import holders
from autotune.hardware.gpu_meter import GPU_FIGURES, GpuMeter
from autotune.hardware.hardware_use import GpuUse, HardwareSeries, HardwareUse, Spread
from autotune.hardware.machine_meter import MACHINE_FIGURES, MachineMeter
from autotune.hardware.neighbours import Neighbourhood
from autotune.hardware.nvml import Nvml

_PATIENCE_S = 2.0


class HardwareSampler:
    """A context in which the hardware is sampled; what it saw is there afterwards.

    Nothing that goes wrong here is raised: sampling ends, and the result says why. The thread
    neither delays the end of the context, by more than ``patience_s`` where the driver hangs,
    nor that of the interpreter.

    Args:
        uuids: GPUs to ask the driver for.
        own_pids: processes of our run, as this process knows them.
        interval_s: between two samples.
        patience_s: how long the end waits for a sample that is being taken.
        library: stands in for ``pynvml``.
        proc: where the kernel's files are.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        own_pids: Iterable[int] = (),
        interval_s: float = 0.5,
        patience_s: float = _PATIENCE_S,
        library: Any = pynvml,
        proc: Path = Path("/proc"),
    ) -> None:
        own = frozenset(own_pids)
        self._uuids = tuple(uuids)
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._nvml = Nvml(library)
        self._machine = MachineMeter(own, proc=proc)
        self._neighbours = Neighbourhood(own, proc=proc)
        self._rows: list[tuple[float, dict[str, float]]] = []
        self._reasons: dict[str, list[frozenset[str]]] = {uuid: [] for uuid in self._uuids}
        self._fault: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware-sampler", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError as error:
            self._fault = str(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(self._patience_s)
        if self._thread.is_alive():
            self._fault = "the driver does not answer"

    def result(self) -> HardwareUse:
        """Return what was seen; called after the context."""
        rows = list(self._rows)
        series = HardwareSeries.of(rows, self._names())
        spreads = {name: Spread.of(values) for name, values in series.values.items()}
        return HardwareUse(
            samples=len(rows),
            machine={name: spreads[name] for name in MACHINE_FIGURES},
            gpus={
                uuid: GpuUse(
                    {name: spreads[_of_gpu(place, name)] for name in GPU_FIGURES},
                    _shares(list(self._reasons[uuid])),
                )
                for place, uuid in enumerate(self._uuids)
            },
            others=self._neighbours.others(),
            pids_comparable=self._neighbours.pids_comparable,
            fault=self._fault,
            series=series,
        )

    def _names(self) -> list[str]:
        gpus = range(len(self._uuids))
        return [
            *MACHINE_FIGURES,
            *(_of_gpu(place, name) for place in gpus for name in GPU_FIGURES),
        ]

    def _run(self) -> None:
        # The top of a thread: whatever fails in looking must not fail what is looked at.
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001
            self._fault = f"{type(error).__name__}: {error}"

    def _sample(self) -> None:
        handles = self._nvml.handles(self._uuids)
        meters = {uuid: GpuMeter(self._nvml, handle) for uuid, handle in handles.items()}
        try:
            while True:
                self._take(handles, meters)
                if self._stop.wait(self._interval_s):
                    return
        finally:
            for meter in meters.values():
                meter.close()

    def _take(self, handles: dict[str, Any], meters: dict[str, GpuMeter]) -> None:
        at_s, row = time.perf_counter(), self._machine.read()
        for place, uuid in enumerate(self._uuids):
            if uuid not in meters:
                continue
            row |= {_of_gpu(place, name): value for name, value in meters[uuid].read().items()}
            if (reasons := meters[uuid].clock_reasons()) is not None:
                self._reasons[uuid].append(reasons)
        self._neighbours.look(
            {uuid: holders(self._nvml, handle) for uuid, handle in handles.items()}
        )
        self._rows.append((at_s, row))


def _of_gpu(place: int, name: str) -> str:
    return f"gpu{place}_{name}"


def _shares(seen: Sequence[frozenset[str]]) -> dict[str, float] | None:
    """Return the share of samples that each reason was seen in."""
    counts = Counter(reason for reasons in seen for reason in sorted(reasons))
    return (
        {reason: count / len(seen) for reason, count in sorted(counts.items())} if seen else None
    )
