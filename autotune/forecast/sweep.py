"""A sweep that was run, with what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autotune.forecast.calibration import Calibration, has_all
from autotune.forecast.grid import SweepPlan
from autotune.forecast.ladder import sequence_caps, worthwhile_budgets
from objectives.steps import Steps
from objectives.utilization import Work, step_flops


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """Steps of known work, and their reading.

    Attributes:
        steps: with one in flight, in the order of the sweep.
        whole: whether all of its plan was measured.
        calibration: what the steps say.
        seconds: that it took to start the engine and to run the sweep.
    """

    steps: Steps
    whole: bool
    calibration: Calibration
    seconds: float

    @classmethod
    def of(
        cls,
        steps: Steps,
        *,
        plan: SweepPlan,
        whole: bool,
        capture_sizes: Sequence[int],
        work: Work | None,
        seconds: float = 0.0,
    ) -> Self:
        """Read a sweep.

        Args:
            steps: of the sweep.
            plan: what was to be measured.
            whole: whether there was time for all of its plan.
            capture_sizes: token counts for which there are CUDA graphs.
            work: what the model computes, None where nobody can say.
            seconds: that it took, the start of the engine included.
        """
        flops_of = None if work is None else (lambda each: step_flops(each, work))
        calibration = Calibration.measured(
            steps, plan=plan, capture_sizes=capture_sizes, flops_of=flops_of
        )
        return cls(steps, whole and has_all(steps, plan), calibration, seconds)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; times in whole microseconds."""
        columns: dict[str, list[Any]] = {}
        for field in fields(Steps):
            column = getattr(self.steps, field.name)
            micro = field.name.endswith("_s")
            columns[field.name] = (np.rint(column * 1e6).astype(int) if micro else column).tolist()
        return {
            "whole": self.whole,
            "seconds": self.seconds,
            "calibration": self.calibration.to_json(),
            "steps": columns,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        columns: dict[str, NDArray[Any]] = {}
        for field in fields(Steps):
            column = np.array(data["steps"][field.name], dtype=np.float64)
            scaled = column / 1e6 if field.name.endswith("_s") else column
            columns[field.name] = scaled if field.type == "F8" else scaled.astype(np.int64)
        calibration = Calibration.from_json(data["calibration"])
        return cls(Steps(**columns), data["whole"], calibration, data["seconds"])


@dataclass(frozen=True, slots=True)
class MeasuredRungs:
    """Ladders as a calibration calls for them; see ``autotune.candidates.lattice.Measured``."""

    calibration: Calibration

    @property
    def kept(self) -> tuple[int, ...]:
        limit = self.calibration.capture_limit
        return () if limit is None else (limit,)

    def budgets(self, tile: int, low: int, top: int) -> tuple[int, ...]:
        return worthwhile_budgets(self.calibration, tile=tile, low=low, top=top)

    def caps(self, tile: int, top: int) -> tuple[int, ...]:
        return sequence_caps(self.calibration.capture_sizes, tile=tile, top=top)
