"""What a job needs of whoever runs its engines, real or simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from autotune.engine.supervisor import Description
from autotune.forecast.grid import SweepPlan
from autotune.study.runner import Engines
from objectives.steps import Steps


class AnyEngines(Engines, Protocol):
    """See ``autotune.engine.supervisor`` and ``autotune.simulated.engines``."""

    pulse: Callable[[], None] | None

    @property
    def device_uuids(self) -> frozenset[str]: ...

    @property
    def host_log(self) -> Path: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def describe(self, engine_args: Mapping[str, Any]) -> Description: ...

    def validate(self, engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]: ...

    def sweep(
        self,
        plan: SweepPlan,
        limits: Mapping[str, int],
        on_progress: Callable[[Mapping[str, Any]], None],
    ) -> tuple[Steps, bool]: ...

    def close(self) -> None: ...
