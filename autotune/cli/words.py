"""The verdict in sentences that a tired person understands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.cli.tables import figure, limits
from objectives.budget import margins

if TYPE_CHECKING:
    from autotune.study.costs import Cell
    from autotune.study.judgement import Judgement
    from objectives.knee import TradeOff
    from objectives.statistics import Interval
    from storage.records import TrialRecord

_UNITS = {"busy_s_per_1k_tokens": "s busy per 1,000 tokens"}
_HAZY_LOW, _HAZY_HIGH = 0.995, 1.005


def verdict_lines(judgement: Judgement) -> list[str]:
    """Return the verdict, its reasons and its limits, one sentence a line."""
    return list(_lines(judgement))


def time_line(trials: Sequence[TrialRecord]) -> str:
    """Return where the time of a study went."""
    names = {
        "start_s": "engine starts",
        "warmup_s": "warm-up",
        "replay_s": "replays",
        "stop_s": "stops",
    }
    totals = {
        label: sum((trial.timings or {}).get(name) or 0.0 for trial in trials)
        for name, label in names.items()
    }
    parts = ", ".join(f"{label} {seconds:.0f} s" for label, seconds in totals.items())
    return f"{len(trials)} trials took {sum(totals.values()):.0f} s: {parts}."


def _lines(judgement: Judgement) -> Iterator[str]:
    chosen = judgement.chosen
    if chosen is None:
        yield from _nothing(judgement)
        return
    yield _headline(judgement, chosen)
    yield from _budget(judgement, chosen)
    yield from _against_baseline(judgement, chosen)
    if judgement.code == "knee" and judgement.knee is not None:
        for trade in judgement.knee.trade_offs:
            yield _trade(judgement, trade)
        if not judgement.knee.pronounced:
            yield "The front is nearly straight here: no knee stands out."
    yield from _certainty(judgement)
    yield from _left_out(judgement)


def _nothing(judgement: Judgement) -> Iterator[str]:
    nearest = judgement.nearest
    yield "Nothing keeps the budget."
    if nearest is not None:
        cell = judgement.cells[nearest]
        values = ", ".join(
            f"{limit.key} {figure(cell.metrics.get(limit.key))} ms of {figure(limit.limit_ms)}"
            for limit in judgement.budget.limits
        )
        yield f"Nearest is {limits(cell.candidate)}: {values}."
    yield "Loosen the budget, lighten the load, or give the model more hardware."


def _headline(judgement: Judgement, chosen: Cell) -> str:
    name = limits(chosen.candidate)
    if judgement.code == "keep_default":
        return f"Keep what you have: {name} is as good as anything that was tried."
    if judgement.code == "not_converged":
        return f"Not converged: {name} is the best so far, but the study cannot be sure of it."
    return f"The knee is at {name} (max_num_batched_tokens/max_num_seqs)."


def _budget(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    if not judgement.budget.limits:
        yield "No budget was given, so latencies are weighed against the best that was seen."
        return
    for limit in judgement.budget.limits:
        value = chosen.metrics.get(limit.key)
        bound = (chosen.intervals.get(limit.key) or (None, None))[1]
        upper = (
            "no upper bound, the window is too short"
            if bound is None
            else f"upper bound {figure(bound)}"
        )
        yield f"{limit.key} is {figure(value)} ms of {figure(limit.limit_ms)} allowed ({upper})."
    if judgement.kept is None:
        yield "The budget is met in the sample; a longer window is needed to call it kept."
    elif judgement.kept is False:
        yield "The budget is met in the sample, but its upper bounds are beyond it."


def _against_baseline(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    if judgement.baseline is None or judgement.winner == judgement.baseline:
        return
    base = judgement.cells[judgement.baseline]
    pairs = (*judgement.names[:2], "itl_p99", "tokens_per_busy_s")
    changes = [
        f"{name} {figure(base.metrics.get(name))} → {figure(chosen.metrics.get(name))}"
        for name in dict.fromkeys(pairs)
        if base.metrics.get(name) is not None
    ]
    yield f"Against the baseline {limits(base.candidate)}: {', '.join(changes)}."
    if not base.feasible:
        broken = [
            f"{limit.key} {figure(base.metrics.get(limit.key))} of {figure(limit.limit_ms)} ms"
            for limit in judgement.budget.limits
            if (margins(judgement.budget, base.metrics)[limit.key] or 0.0) > 0
        ]
        yield f"The baseline breaks the budget: {', '.join(broken) or 'requests failed'}."
    elif judgement.gain is not None:
        yield f"The gain is {_gain(judgement.gain)}."


def _gain(gain: tuple[float, Interval]) -> str:
    estimate, bounds = gain
    return (
        f"{figure(estimate, 2)} widths of the budget "
        f"(90 % interval {figure(bounds.low, 2)} to {figure(bounds.high, 2)})"
    )


def _trade(judgement: Judgement, trade: TradeOff) -> str:
    other = limits(judgement.cells[trade.neighbour].candidate)
    changes = [
        f"{_named(name)} {_change(change)}"
        for name, change in zip(judgement.names, trade.changes, strict=True)
        if not _HAZY_LOW <= 1 + change <= _HAZY_HIGH
    ]
    return f"Moving on to {other} would change {', '.join(changes) or 'nothing'}."


def _named(name: str) -> str:
    return _UNITS.get(name, name)


def _change(change: float) -> str:
    return "to no end" if math.isinf(change) else f"by {change:+.0%}"


def _certainty(judgement: Judgement) -> Iterator[str]:
    certainty = judgement.certainty
    if certainty is None or judgement.knee is None:
        return
    if judgement.code == "keep_default":
        if judgement.knee.cell != judgement.winner and judgement.gain is not None:
            best = limits(judgement.cells[judgement.knee.cell].candidate)
            yield f"{best} scored better by {_gain(judgement.gain)}, which is within the noise."
        return
    cells = [limits(judgement.cells[cell].candidate) for cell in certainty.knee_set]
    yield (
        f"Confidence: {certainty.probability[judgement.knee.cell]:.0%} that "
        f"{limits(judgement.cells[judgement.knee.cell].candidate)} is the best of what was "
        f"measured; 90 % of the evidence is for {', '.join(cells)}; "
        f"expected loss {certainty.expected_opportunity_cost:.3f} widths of the budget."
    )


def _left_out(judgement: Judgement) -> Iterator[str]:
    left = [
        _named(name)
        for name, used, ideal in zip(
            judgement.names, judgement.scores.used, judgement.scores.ideal, strict=True
        )
        if not used and math.isfinite(ideal)
    ]
    if left:
        yield f"Not counted, since it differs by less than its noise: {', '.join(left)}."
