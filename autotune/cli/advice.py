"""What to do with a verdict: the exact option or command that comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cli.changes import moved, others_moved, relative, trade
from autotune.cli.tables import limits
from objectives.limits import Budget
from objectives.statistics import requests_needed

if TYPE_CHECKING:
    from autotune.study.costs import Cell
    from autotune.study.judgement import Judgement
    from objectives.limits import Limit

MORE_TRIALS = 8
"""How many further trials are proposed: enough for a few cells and their repeats."""

_DIGITS = 2


def held_back(judgement: Judgement, winner: int) -> tuple[list[str], int | None]:
    """Say which limit bound the winner, and what moving it does as far as it was measured.

    Returns:
        The sentences, and the cell that they compare with, None without one.
    """
    cell = judgement.cells[winner]
    name = limits(cell.candidate)
    if cell.diagnosis is None:
        return [], None
    direction, _, knob = str(cell.diagnosis["next_knob"]).partition(" ")
    if not knob:
        return [f"Neither limit holds {name} back: {cell.diagnosis['reason']}."], None
    held = f"What holds {name} back: {cell.diagnosis['reason']}."
    verb = "Raising" if direction == "raise" else "Lowering"
    other = moved(judgement, winner, knob, 1 if direction == "raise" else -1)
    if other is None:
        return [held, f"{verb} {knob} was not measured from there."], None
    there = judgement.cells[other]
    also = others_moved(cell.candidate, there.candidate, knob)
    aside = f" (with another {', '.join(also)} too)" if also else ""
    broken = "" if there.feasible else "; it breaks the budget"
    effect = trade(judgement.names, relative(cell, there))
    return [
        held,
        f"{verb} {knob}, as at {limits(there.candidate)}{aside}: {effect}{broken}.",
    ], other


def next_lines(judgement: Judgement) -> list[str]:
    """Return what to do now, the likeliest first, one sentence a line."""
    return list(_lines(judgement))


def _lines(judgement: Judgement) -> Iterator[str]:
    chosen = judgement.chosen
    if chosen is None:
        yield from _loosen(judgement)
        return
    if judgement.code == "not_converged":
        yield from _go_on(judgement, chosen)
    elif judgement.code == "keep_default":
        yield "Next: nothing to change."
        if (chosen.diagnosis or {}).get("code") == "under_loaded":
            yield (
                "The limits hardly mattered here: to see them matter, replay busier traffic, such "
                "as --window busiest:10m of a longer trace."
            )
    else:
        yield "Next: autotune best --output serve.yaml, then vllm serve --config serve.yaml."
    yield from _longer_window(judgement, chosen)


def _go_on(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    yield (
        f"Next: the same command with --trials raised by {MORE_TRIALS}: it keeps these trials and "
        f"adds {MORE_TRIALS}."
    )
    if len(judgement.cells) > 1:
        yield (
            f"Or take {limits(chosen.candidate)} now, with autotune best --output serve.yaml: "
            "what is at stake is said above."
        )


def _longer_window(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    """Say how long a window must be where it was too short for an upper bound."""
    needs = [
        f"{limit.key} needs {needed} requests{_of_class(limit)}"
        for limit in judgement.budget.limits
        if upper_bound(chosen, limit) is None and (needed := requests_needed(limit.aggregate))
    ]
    if needs:
        yield (
            f"To have the budget kept, not only met, give a longer --window: {', '.join(needs)}. "
            "That is a new study."
        )
    elif judgement.kept is False:
        yield (
            "To be surer that the budget is kept, give a longer --window, which is a new study, "
            "or leave more room in --budget."
        )


def _of_class(limit: Limit) -> str:
    return "" if limit.class_name is None else f" of class {limit.class_name}"


def upper_bound(cell: Cell, limit: Limit) -> float | None:
    """Return the upper confidence bound of what a limit is about, None if there is none."""
    bound: float | None = (cell.intervals.get(limit.key) or (None, None))[1]
    return bound


def _loosen(judgement: Judgement) -> Iterator[str]:
    nearest = None if judgement.nearest is None else judgement.cells[judgement.nearest]
    if not judgement.budget.limits or nearest is None or nearest.failed_requests:
        # The engine's log says more than any other budget would.
        return
    yield f"Next: the same command with --trials raised by {MORE_TRIALS}, to search on."
    budget = _met_by(judgement.budget, nearest)
    if budget is not None:
        yield (
            f"Or with --budget '{budget.text}', which {limits(nearest.candidate)} meets: these "
            "trials are judged again in seconds."
        )
    yield "Or lighten the load, or give the model more hardware."


def _met_by(budget: Budget, cell: Cell) -> Budget | None:
    """Return the budget with each limit that the cell breaks rounded up to what it meets."""
    loosened = []
    for limit in budget.limits:
        value = cell.metrics.get(limit.key)
        if value is None or not math.isfinite(value) or limit.limit_ms is None:
            return None
        met = limit.limit_ms if value <= limit.limit_ms else _rounded_up(value)
        loosened.append(replace(limit, limit_ms=met))
    return Budget(tuple(loosened))


def _rounded_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return round(math.ceil(value / unit) * unit, 6)
