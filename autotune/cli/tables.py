"""Tables and sentences for a terminal, and for whatever the output is piped into."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.study.view import StudyView

_SHOWN = ("ttft_", "tpot_", "itl_")

WIDE = 110
"""Columns from which the table has room for everything."""

PIPED_WIDTH = 120
"""Columns where the output is no terminal and COLUMNS does not say otherwise."""


def console(stream: TextIO | None = None) -> Console:
    """Return a console for ``stream`` (stdout by default); colour only on a terminal."""
    from rich.console import Console

    stream = stream or sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    # Names of studies and values of knobs are text, whatever brackets they have.
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def figure(value: float | None, digits: int = 1) -> str:
    """Return a number for a table cell; ``-`` where there is none."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "inf"
    return f"{value:.{digits}f}"


def limits(candidate: Mapping[str, Any]) -> str:
    """Return a candidate in a few characters: ``2048/128`` and further knobs by name."""
    names = ("max_num_batched_tokens", "max_num_seqs")
    rest = [f"{name}={value}" for name, value in candidate.items() if name not in names]
    return " ".join(["/".join(str(candidate[name]) for name in names), *rest])


def trial_table(view: StudyView, *, width: int) -> Any:
    """Return all trials of a study as a table; a narrow one leaves out what is missed least."""
    from rich import box
    from rich.table import Table

    from autotune.study.view import headline, trial_json

    narrow = width < WIDE
    names = [name for name in headline(view) if name.startswith(_SHOWN)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1))
    for heading, justify in _headings(names, narrow=narrow):
        # What does not fit is cut from the last column, which explains the others.
        least = None if heading == "diagnosis" else len(heading)
        side: Literal["right", "left"] = "right" if justify else "left"
        table.add_column(heading, justify=side, no_wrap=True, min_width=least)
    winner = view.judgement.chosen.numbers if view.judgement and view.judgement.chosen else ()
    for trial in view.trials:
        row = trial_json(view, trial)
        metrics = row["metrics"] or {}
        numbers = [figure(metrics.get(name)) for name in names]
        table.add_row(
            f"{trial.number}{'*' if trial.number in winner else ''}",
            trial.phase,
            limits(trial.candidate),
            *numbers,
            *([] if narrow else [figure(metrics.get("utilization"), 2)]),
            _met(row),
            _remark(row, narrow=narrow),
            style="bold" if trial.number in winner else None,
        )
    return table


def _headings(names: Sequence[str], *, narrow: bool) -> list[tuple[str, bool]]:
    latencies = [(name if narrow else f"{name} ms", True) for name in names]
    return [
        ("#" if narrow else "trial", True),
        ("phase", False),
        ("tokens/seqs", True),
        *latencies,
        *([] if narrow else [("util", True)]),
        ("budget", False),
        ("diagnosis", False),
    ]


def _met(row: Mapping[str, Any]) -> str:
    """Say how a trial's own values stand to the budget; only bounds could call it kept."""
    if row["feasible"] is None:
        return "-"
    return "met" if row["feasible"] else "broken"


def _remark(row: Mapping[str, Any], *, narrow: bool) -> str:
    if row["failure"] is not None:
        failure_class = str(row["failure"]["class"])
        return failure_class if narrow else f"{row['state']}: {failure_class}"
    if row["diagnosis"] is None:
        return str(row["state"])
    if narrow:
        return str(row["diagnosis"]["code"])
    # The column heading is tokens/seqs as well.
    knob = row["diagnosis"]["next_knob"].replace("max_num_batched_", "").replace("max_num_", "")
    return f"{row['diagnosis']['code']}{': ' + knob if knob else ''}"


def plain_line(text: str) -> str:
    """Return text without control characters, so that no name can drive the terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)
