"""What the hardware did during a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autotune.hardware.neighbours import Neighbour

PREFIX = "hardware_"
"""Before the names of the arrays where they are kept together with those of the replay."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over all samples that have it."""

    mean: float
    max: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Self | None:
        """Summarise values that are NaN where there was no answer; None if there was none."""
        found = values[~np.isnan(values)]
        return cls(float(found.mean()), float(found.max())) if found.size else None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one GPU did.

    Attributes:
        figures: by the names of ``GPU_FIGURES``; None where the driver did not answer.
        clock_reasons: why its clocks were as they were, with the share of samples, 0 to 1; None
            where the driver did not say.
    """

    figures: Mapping[str, Spread | None]
    clock_reasons: Mapping[str, float] | None


@dataclass(frozen=True, slots=True, eq=False)
class HardwareSeries:
    """The samples themselves.

    Attributes:
        at_s: when each was taken, by ``time.perf_counter``, [samples].
        values: figures of the machine by name, those of GPUs as ``gpu0_power_w`` with the place
            of the GPU among those asked for, [samples]; NaN where there was no answer.
    """

    at_s: NDArray[np.float64]
    values: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, rows: Sequence[tuple[float, Mapping[str, float]]], names: Sequence[str]) -> Self:
        """Build from readings with their times; each has some of the names."""
        at_s = np.array([at for at, _ in rows], dtype=np.float64)
        values = {
            name: np.array([row.get(name, np.nan) for _, row in rows], dtype=np.float64)
            for name in names
        }
        return cls(at_s, values)

    def to_arrays(self, *, started_at: float) -> dict[str, NDArray[np.float64]]:
        """Return the arrays to keep; times are then seconds from ``started_at``."""
        named = {PREFIX + name: values for name, values in self.values.items()}
        return {PREFIX + "at_s": self.at_s - started_at, **named}


@dataclass(frozen=True, slots=True, eq=False)
class HardwareUse:
    """What the hardware did while it was sampled.

    Attributes:
        samples: how many times it was looked at; shares over time need two.
        machine: by the names of ``MACHINE_FIGURES``; None where there was no answer.
        gpus: by UUID, those that the driver does not know included.
        others: who else had memory of our GPUs.
        pids_comparable: False where the driver's pids are another namespace's, and ``others``
            may hold our own; None if it named no process.
        fault: why sampling ended early; None if it did not.
        series: the samples.
    """

    samples: int
    machine: Mapping[str, Spread | None]
    gpus: Mapping[str, GpuUse]
    others: tuple[Neighbour, ...]
    pids_comparable: bool | None
    fault: str | None
    series: HardwareSeries

    def to_json(self) -> dict[str, Any]:
        """Return everything but the series."""
        return {
            "samples": self.samples,
            "machine": _spreads_json(self.machine),
            "gpus": {
                uuid: {
                    "figures": _spreads_json(gpu.figures),
                    "clock_reasons": gpu.clock_reasons and dict(gpu.clock_reasons),
                }
                for uuid, gpu in self.gpus.items()
            },
            "others": [each.to_json() for each in self.others],
            "pids_comparable": self.pids_comparable,
            "fault": self.fault,
        }


def _spreads_json(spreads: Mapping[str, Spread | None]) -> dict[str, Any]:
    return {name: spread and asdict(spread) for name, spread in spreads.items()}
