"""The verdict in sentences that a tired person understands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.cli.tables import figure, limits
from autotune.study.plan import finished_trials
from objectives.budget import margins
from objectives.statistics import requests_needed

if TYPE_CHECKING:
    from autotune.study.costs import Cell
    from autotune.study.judgement import Judgement
    from autotune.study.view import StudyView
    from objectives.knee import TradeOff
    from objectives.limits import Limit
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


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return what a study would do, a line for each thing that there is to say."""
    return [f"{name}: {_worded(value)}" for name, value in plan.items() if value not in ([], {})]


def _worded(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_worded(each) for each in value)
    if isinstance(value, dict):
        if isinstance(value.get("max_num_seqs"), int) and "max_num_batched_tokens" in value:
            return limits(value)
        return "; ".join(f"{name} {_worded(each)}" for name, each in value.items())
    return str(value)


def state_line(view: StudyView) -> str:
    """Return how far a study is."""
    finished = finished_trials(view.trials)
    total = view.study.spec["trials"]
    return f"Study {view.study.name!r}: {view.study.state}, {finished} of {total} trials."


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
    if not judgement.budget.limits:
        yield from _failed_everywhere(judgement)
        return
    nearest = judgement.nearest
    yield "Nothing keeps the budget."
    if nearest is not None:
        cell = judgement.cells[nearest]
        values = [
            f"{limit.key} {figure(cell.metrics.get(limit.key))} ms of {figure(limit.limit_ms)}"
            for limit in judgement.budget.limits
        ]
        if cell.failed_requests:
            values.append(_failed(cell))
        yield f"Nearest is {limits(cell.candidate)}: {', '.join(values)}."
    yield (
        "Loosen the budget (the same command with another --budget judges these trials again in "
        "seconds), lighten the load, or give the model more hardware."
    )


def _failed_everywhere(judgement: Judgement) -> Iterator[str]:
    """Say what is wrong where there is no limit that a candidate could break."""
    least = min(judgement.cells, key=lambda cell: cell.failed_requests)
    yield "Requests failed under every candidate."
    yield f"Fewest failed under {limits(least.candidate)}: {_failed(least)}."
    yield f"The engine's log says why: autotune show {least.numbers[-1]} names it."


def _failed(cell: Cell) -> str:
    count = cell.failed_requests
    return f"{count} {'request' if count == 1 else 'requests'} failed"


def _headline(judgement: Judgement, chosen: Cell) -> str:
    name = limits(chosen.candidate)
    if judgement.code == "keep_default":
        return f"Keep what you have: {name} is as good as anything that was tried."
    if len(judgement.cells) == 1:
        return f"Not converged: {name} is the only candidate that was measured."
    if judgement.code == "not_converged":
        return f"Not converged: {name} is the best so far, but the study cannot be sure of it."
    return f"The knee is at {name} (max_num_batched_tokens/max_num_seqs)."


def _budget(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    if not judgement.budget.limits:
        yield "No budget was given, so latencies are weighed against the best that was seen."
        return
    for limit in judgement.budget.limits:
        value = figure(chosen.metrics.get(limit.key))
        upper = _upper(chosen, limit)
        yield f"{limit.key} is {value} ms of {figure(limit.limit_ms)} allowed ({upper})."
    yield _kept(judgement)


def _upper(chosen: Cell, limit: Limit) -> str:
    bound = (chosen.intervals.get(limit.key) or (None, None))[1]
    if bound is not None:
        return f"upper bound {figure(bound)}"
    if _boundless(limit):
        return "no upper bound, as no window bounds a maximum"
    return "no upper bound, the window is too short"


def _boundless(limit: Limit) -> bool:
    """Whether a window of any length has no upper bound for this value."""
    return requests_needed(limit.aggregate) is None


def _kept(judgement: Judgement) -> str:
    if judgement.kept:
        return "The budget is kept: all upper bounds are within it."
    if judgement.kept is False:
        return "The budget is met in the sample, but its upper bounds are beyond it."
    if any(_boundless(limit) for limit in judgement.budget.limits):
        return "The budget is met in the sample; a limit on a maximum is never called kept."
    return "The budget is met in the sample; a longer window is needed to call it kept."


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
        if base.failed_requests:
            broken.append(_failed(base))
        fault = "breaks the budget" if judgement.budget.limits else "is no alternative"
        yield f"The baseline {fault}: {', '.join(broken)}."
    elif judgement.gain is not None:
        yield f"The gain is {_gain(judgement, judgement.gain)}."


def _gain(judgement: Judgement, gain: tuple[float, Interval]) -> str:
    estimate, bounds = gain
    return (
        f"{figure(estimate, 2)} {_widths(judgement)} "
        f"(90 % interval {figure(bounds.low, 2)} to {figure(bounds.high, 2)})"
    )


def _widths(judgement: Judgement) -> str:
    """Return the unit of a score: without limits it is the way from the best to its double."""
    return "widths of the budget" if judgement.budget.limits else "doublings"


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
    return "without bound" if math.isinf(change) else f"by {change:+.0%}"


def _certainty(judgement: Judgement) -> Iterator[str]:
    certainty = judgement.certainty
    if certainty is None or judgement.knee is None or len(judgement.cells) == 1:
        return
    if judgement.code == "keep_default":
        if judgement.knee.cell != judgement.winner and judgement.gain is not None:
            best = limits(judgement.cells[judgement.knee.cell].candidate)
            gain = _gain(judgement, judgement.gain)
            yield f"{best} scored better by {gain}, which is within the noise."
        return
    share = certainty.probability[judgement.knee.cell]
    best = limits(judgement.cells[judgement.knee.cell].candidate)
    rivals = [limits(judgement.cells[cell].candidate) for cell in certainty.knee_set]
    also = "" if rivals == [best] else f", and {' or '.join(rivals)} in 90 % of them"
    cost = f"{certainty.expected_opportunity_cost:.3f} {_widths(judgement)}"
    yield (
        f"Confidence: {best} is best in {share:.0%} of the resamples{also}; expected loss {cost}."
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
