"""The verdict in sentences that a tired person understands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.cli.advice import held_back, next_lines, upper_bound
from autotune.cli.changes import against, objective, trade
from autotune.cli.tables import duration, figure, limits
from autotune.study.costs import RESAMPLES
from autotune.study.judgement import CONVERGED_COST
from autotune.study.plan import finished_trials
from objectives.budget import margins
from objectives.statistics import requests_needed

if TYPE_CHECKING:
    from autotune.study.costs import Cell
    from autotune.study.judgement import Judgement
    from autotune.study.view import StudyView
    from objectives.limits import Limit
    from objectives.statistics import Interval
    from storage.records import TrialRecord

_WORTH_SAYING = 0.05
"""Per cent of the way from the limits to the best seen that a choice may lose unmentioned."""


def verdict_lines(judgement: Judgement) -> list[str]:
    """Return the verdict, its reasons and what to do next, one sentence a line.

    The first line says what to deploy, or that there is nothing.
    """
    return [*_lines(judgement), *next_lines(judgement)]


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
    parts = ", ".join(f"{label} {duration(seconds)}" for label, seconds in totals.items())
    return f"{len(trials)} trials took {duration(sum(totals.values()))}: {parts}."


def state_line(view: StudyView) -> str:
    """Return how far a study is."""
    finished = finished_trials(view.trials)
    total = view.study.spec["trials"]
    return f"Study {view.study.name!r}: {view.study.state}, {finished} of {total} trials."


def _lines(judgement: Judgement) -> Iterator[str]:
    chosen = judgement.chosen
    if chosen is None or judgement.winner is None:
        yield from _nothing(judgement)
        return
    yield _headline(judgement, chosen)
    yield from _budget(judgement, chosen)
    yield from _against_baseline(judgement, chosen)
    held, shown = held_back(judgement, judgement.winner)
    yield from held
    if judgement.code == "knee":
        yield from _trades(judgement, shown)
    yield from _certainty(judgement)
    yield from _left_out(judgement)


def _nothing(judgement: Judgement) -> Iterator[str]:
    if not judgement.budget.limits:
        yield from _failed_everywhere(judgement)
        return
    yield "Nothing keeps the budget."
    if judgement.nearest is not None:
        cell = judgement.cells[judgement.nearest]
        values = [
            f"{limit.key} {figure(cell.metrics.get(limit.key))} ms of {figure(limit.limit_ms)}"
            for limit in judgement.budget.limits
        ]
        if cell.failed_requests:
            values.append(_failed(cell))
        yield f"Nearest is {limits(cell.candidate)}: {', '.join(values)}."
        if cell.failed_requests:
            yield _log_says(cell)


def _failed_everywhere(judgement: Judgement) -> Iterator[str]:
    """Say what is wrong where there is no limit that a candidate could break."""
    least = min(judgement.cells, key=lambda cell: cell.failed_requests)
    yield "Requests failed under every candidate."
    yield f"Fewest failed under {limits(least.candidate)}: {_failed(least)}."
    yield _log_says(least)


def _log_says(cell: Cell) -> str:
    return f"The engine's log says why: autotune show {cell.numbers[-1]} names it."


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
    return (
        f"The knee is at {name} (max_num_batched_tokens/max_num_seqs): the best compromise that "
        "was measured."
    )


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
    bound = upper_bound(chosen, limit)
    if bound is not None:
        return f"with 95 % confidence at most {figure(bound)}"
    if _boundless(limit):
        return "no upper bound, as no window bounds a maximum"
    return "no upper bound, the window is too short"


def _boundless(limit: Limit) -> bool:
    """Whether a window of any length has no upper bound for this value."""
    return requests_needed(limit.aggregate) is None


def _kept(judgement: Judgement) -> str:
    if judgement.kept:
        return "The budget is kept: the upper bounds are within it too."
    if judgement.kept is False:
        return "The budget is met in this replay, but an upper bound is beyond it."
    if any(_boundless(limit) for limit in judgement.budget.limits):
        return "The budget is met in this replay; a limit on a maximum is never called kept."
    return "The budget is met in this replay, which is too short to call it kept."


def _against_baseline(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    if judgement.baseline is None or judgement.winner == judgement.baseline:
        return
    base = judgement.cells[judgement.baseline]
    yield from against(judgement, base, chosen)
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
        yield f"All in all it gains {_gain(judgement, judgement.gain)}."


def _gain(judgement: Judgement, gain: tuple[float, Interval]) -> str:
    estimate, bounds = gain
    sure = ""
    if bounds.low is not None and bounds.high is not None:
        sure = f" (90 % interval {100 * bounds.low:.0f} to {100 * bounds.high:.0f} %)"
    return f"{100 * estimate:.0f} % {_way(judgement)}{sure}"


def _way(judgement: Judgement) -> str:
    """Return what a score of 1 is, as a length: 0 is the best seen in everything."""
    start = "your limits" if judgement.budget.limits else "twice the best seen"
    return f"of the way from {start} to the best seen"


def _trades(judgement: Judgement, shown: int | None) -> Iterator[str]:
    """Say what moving on to either neighbour would change, unless it was said already."""
    if judgement.knee is None:
        return
    for each in judgement.knee.trade_offs:
        if each.neighbour != shown:
            other = limits(judgement.cells[each.neighbour].candidate)
            yield f"Moving on to {other}: {trade(judgement.names, each.changes)}."
    if not judgement.knee.pronounced:
        yield (
            "No knee stands out: its neighbours gain about as much as they lose, so choose by "
            "taste."
        )


def _certainty(judgement: Judgement) -> Iterator[str]:
    certainty = judgement.certainty
    if certainty is None or judgement.knee is None or len(judgement.cells) == 1:
        return
    best = limits(judgement.cells[judgement.knee.cell].candidate)
    if judgement.code == "keep_default":
        if judgement.knee.cell != judgement.winner and judgement.gain is not None:
            gain = _gain(judgement, judgement.gain)
            yield f"{best} seemed to gain {gain}, which is within the noise."
        return
    share = certainty.probability[judgement.knee.cell]
    rivals = [limits(judgement.cells[cell].candidate) for cell in certainty.knee_set]
    also = "" if rivals == [best] else f", and {' or '.join(rivals)} in 90 % of them"
    loss = 100 * certainty.expected_opportunity_cost
    yield f"How sure: in {share:.0%} of {RESAMPLES} resamples {best} is best{also}."
    if loss > 100 * CONVERGED_COST:
        yield (
            f"That leaves too much at stake: on average {loss:.1f} % {_way(judgement)}; up to "
            f"{100 * CONVERGED_COST:.0f} % counts as settled."
        )
    elif loss >= _WORTH_SAYING:
        yield (
            f"If it is not the best after all, little is at stake: on average {loss:.1f} % "
            f"{_way(judgement)}."
        )


def _left_out(judgement: Judgement) -> Iterator[str]:
    left = [
        objective(name)
        for name, used, ideal in zip(
            judgement.names, judgement.scores.used, judgement.scores.ideal, strict=True
        )
        if not used and math.isfinite(ideal)
    ]
    if left:
        yield (
            f"Not counted, since candidates differ in it by less than repeats of one do: "
            f"{', '.join(left)}."
        )
