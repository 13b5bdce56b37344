"""A study followed on a screen: a bar on a terminal, a line a phase elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from autotune.cli.files import TolerantStream
from autotune.cli.tables import console, figure, limits
from storage.records import TrialRecord


class ScreenWatcher:
    """Reports each trial on stderr; a context manager, so that a bar is always taken down."""

    def __init__(self) -> None:
        self._console = console(cast("TextIO", TolerantStream(sys.stderr)))
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("requests"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._label = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        self._label = (
            f"trial {row.number} ({position} of {total}) {row.phase} {limits(row.candidate)}"
        )
        if self._bar.disable:
            self.say(f"{self._label}: starting an engine")
        self._clear()
        self._task = self._bar.add_task(f"{self._label} · engine starts", total=None)

    def progress(self, body: Mapping[str, Any]) -> None:
        if self._task is not None:
            self._bar.update(
                self._task,
                description=f"{self._label} · {body['stage']}",
                total=body["total"],
                completed=body["done"],
            )

    def finished(self, row: TrialRecord) -> None:
        self._clear()
        if row.state != "complete" or row.metrics is None:
            self.say(f"{self._label}: {row.state}, {row.failure_class}: {row.failure_evidence}")
            return
        shown = ", ".join(
            f"{name} {figure(row.metrics.get(name))} ms"
            for name in ("ttft_p95", "tpot_p95", "itl_p99")
        )
        seconds = sum(value or 0.0 for value in (row.timings or {}).values())
        code = (row.diagnosis or {}).get("code", "")
        self.say(f"{self._label}: {shown}; {code}; {seconds:.0f} s")

    def _clear(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
