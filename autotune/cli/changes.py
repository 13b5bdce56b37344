"""What one candidate changes against another, as clauses of a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from autotune.candidates.lattice import Candidate, integer
from autotune.cli.tables import figure, limits
from autotune.study.costs import RATE, UTILIZATION, WORK_COST, work_metric

if TYPE_CHECKING:
    from autotune.study.costs import Cell
    from autotune.study.judgement import Judgement

_NAMES = {WORK_COST: "busy time for the same work", RATE: "work"}
_ALIKE = 0.005
"""Relative changes below this are not worth a tired person's attention."""


def objective(name: str) -> str:
    """Return what a metric or a cost is called in a sentence."""
    return _NAMES.get(name, name)


def against(judgement: Judgement, base: Cell, chosen: Cell) -> list[str]:
    """Return what is better, what is worse and what is alike, a sentence each, with values."""
    better: list[str] = []
    worse: list[str] = []
    alike: list[str] = []
    work = work_metric([base.metrics, chosen.metrics])
    for name in dict.fromkeys((*judgement.names[:2], "itl_p99", work)):
        old, new = base.metrics.get(name), chosen.metrics.get(name)
        if old is None or new is None:
            continue
        change = _change(old, new)
        group = worse if (change > 0) != (name == work) else better
        (alike if abs(change) < _ALIKE else group).append(_valued(name, old, new, change))
    name = limits(base.candidate)
    return [
        f"{start} {', '.join(changes)}."
        for start, changes in (
            (f"Better than the baseline {name}:", better),
            (f"Worse than the baseline {name}, which is the price:", worse),
            ("As before:", alike),
        )
        if changes
    ]


def _change(old: float, new: float) -> float:
    """Return the relative change; infinite from and to what has no bound, and from nothing."""
    if old == new:
        return 0.0
    if math.isinf(old):
        return -math.inf
    return math.copysign(math.inf, new) if old == 0 else new / old - 1


def _valued(name: str, old: float, new: float, change: float) -> str:
    if name == RATE:
        values = f"{figure(old, 0)} → {figure(new, 0)} tokens per busy second"
    elif name == UTILIZATION:
        values = f"{figure(100 * old)} → {figure(100 * new)} %"
    else:
        values = f"{figure(old)} → {figure(new)} ms"
    known = math.isfinite(change) and abs(change) >= _ALIKE
    aside = f" ({_percent(change)})" if known else ""
    return f"{objective(name)} {values}{aside}"


def trade(names: Sequence[str], changes: Sequence[float]) -> str:
    """Return relative changes of costs as what is gained, and at what price."""
    parts = [
        (change, f"{objective(name)} {_percent(change)}")
        for name, change in zip(names, changes, strict=True)
        if abs(change) >= _ALIKE
    ]
    gained = ", ".join(text for change, text in parts if change < 0)
    paid = ", ".join(text for change, text in parts if change > 0)
    if not parts:
        return "nothing to speak of"
    if gained and paid:
        return f"{gained}, but {paid}"
    return gained or f"only a loss, {paid}"


def _percent(change: float) -> str:
    return "without bound" if math.isinf(change) else f"{100 * change:+.0f} %"


def relative(base: Cell, other: Cell) -> tuple[float, ...]:
    """Return the relative change of each cost; 0 where it is missing in one of them."""
    with np.errstate(invalid="ignore", divide="ignore"):
        changes = other.costs / base.costs - 1
    return tuple(0.0 if math.isnan(change) else float(change) for change in changes)


def moved(judgement: Judgement, cell: int, knob: str, direction: int) -> int | None:
    """Return the measured cell that shows best what moving a knob does, None if none does.

    It has a larger value of the knob, or with ``direction`` -1 a smaller one; among such cells
    the fewest others are moved too, and then the knob by the least.
    """
    own = judgement.cells[cell].candidate
    found = [
        (
            len(others_moved(own, other.candidate, knob)),
            abs(_octaves(own, other.candidate, knob)),
            i,
        )
        for i, other in enumerate(judgement.cells)
        if _octaves(own, other.candidate, knob) * direction > 0
    ]
    return min(found)[2] if found else None


def others_moved(own: Candidate, other: Candidate, knob: str) -> list[str]:
    """Return the names of the arguments beside ``knob`` in which two candidates differ."""
    return [name for name in own if name != knob and own[name] != other[name]]


def _octaves(own: Candidate, other: Candidate, knob: str) -> float:
    return math.log2(integer(other[knob]) / integer(own[knob]))
