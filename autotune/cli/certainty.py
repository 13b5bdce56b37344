"""How sure a verdict is, in sentences: what resampling says, and what repeats say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from autotune.cli.changes import objective
from autotune.cli.steadiness import steadiness_lines
from autotune.cli.tables import figure, joined, limits
from autotune.study.costs import RESAMPLES
from autotune.study.judgement import CONVERGED_COST, KEEPING_COST
from objectives.budget import margins

if TYPE_CHECKING:
    from autotune.study.costs import Cell, Noise
    from autotune.study.judgement import Judgement
    from objectives.knee import Certainty
    from objectives.limits import Limit
    from objectives.statistics import Interval

_WORTH_SAYING = 0.0005
"""Share of the way from the budget's limits to the best seen that may be lost unmentioned."""

_FACTOR_FROM = 2.0
"""Repeats that differ by more are said to differ by a factor, not by per cent."""


def certainty_lines(judgement: Judgement) -> Iterator[str]:
    """Say how sure a verdict of any kind is, the first sentence beginning with ``How sure``."""
    if judgement.winner is None:
        yield f"How sure: {_of_nothing(judgement)}."
    elif len(judgement.cells) == 1:
        yield "How sure: not at all, as there is nothing to compare it with."
    elif sum(not cell.live for cell in judgement.cells) == 1:
        yield "How sure: not at all, as no other candidate was confirmed by a restart."
    elif judgement.certainty is not None:
        yield from _of_winner(judgement, judgement.winner, judgement.certainty)
    yield _repeats(judgement)
    yield from steadiness_lines(judgement.steadiness)
    if judgement.winner is not None:
        yield from _little_room(judgement, judgement.cells[judgement.winner])


def gain_text(judgement: Judgement, gain: tuple[float, Interval]) -> str:
    """Return a gain with its interval, as a share of the way to the best seen."""
    estimate, bounds = gain
    sure = ""
    if bounds.low is not None and bounds.high is not None:
        sure = f" (90 % interval {100 * bounds.low:.0f} to {100 * bounds.high:.0f} %)"
    return f"{100 * estimate:.0f} % {_way(judgement)}{sure}"


def largest_spread(judgement: Judgement) -> str:
    """Return by how much repeats of one candidate differ where they differ most."""
    return max(_spreads(judgement), default=(0.0, "nothing"))[1]


def _way(judgement: Judgement) -> str:
    """Return what a score of 1 is, as a length: 0 is the best seen in everything."""
    start = "the budget's limits" if judgement.budget.limits else "twice the best seen"
    return f"of the way from {start} to the best seen"


def _of_winner(judgement: Judgement, winner: int, certainty: Certainty) -> Iterator[str]:
    name = limits(judgement.cells[winner].candidate)
    if sum(cell.feasible for cell in judgement.cells) == 1:
        met = "meets the budget" if judgement.budget.limits else "has no failed request"
        yield f"How sure: {name} is the only candidate that {met}, so no other was in question."
        return
    share = certainty.probability[winner]
    rivals = [_named(judgement.cells[cell]) for cell in certainty.knee_set]
    also = "" if rivals == [name] else f", and {' or '.join(rivals)} in 90 % of them"
    yield f"How sure: in {share:.0%} of {RESAMPLES} resamples {name} is best{also}."
    cost = certainty.expected_opportunity_cost
    # 3.04 % must not read as 3.0 %, of which 3 % would be enough.
    close = cost > CONVERGED_COST and round(100 * cost, 1) <= 100 * CONVERGED_COST
    loss = f"{100 * cost:.{3 if close else 1}f} %"
    settled = f"up to {100 * CONVERGED_COST:.0f} % counts as settled"
    if judgement.code == "keep_default":
        yield from _seemed(judgement, winner)
        kept = f"up to {100 * KEEPING_COST:.0f} % is no reason to change"
        yield f"Keeping it loses {loss} {_way(judgement)} on average; {kept}."
    elif cost > CONVERGED_COST:
        yield f"That leaves too much at stake: on average {loss} {_way(judgement)}; {settled}."
    elif cost >= _WORTH_SAYING:
        yield (
            f"If it is not the best after all, little is at stake: on average {loss} "
            f"{_way(judgement)}."
        )


def _named(cell: Cell) -> str:
    return f"{limits(cell.candidate)}{' (measured live only)' if cell.live else ''}"


def _seemed(judgement: Judgement, winner: int) -> Iterator[str]:
    knee = judgement.knee
    if knee is not None and knee.cell != winner and judgement.gain is not None:
        best = limits(judgement.cells[knee.cell].candidate)
        low = judgement.gain[1].low
        why = "within the noise" if low is None or low <= 0 else "too little to change for"
        yield f"{best} seemed to gain {gain_text(judgement, judgement.gain)}, which is {why}."


def _of_nothing(judgement: Judgement) -> str:
    """Say whether the nearest candidate might keep the budget in another replay."""
    if judgement.unconfirmed is not None:
        return "not at all, as no restart has confirmed a candidate that meets the budget"
    if judgement.nearest is None or judgement.cells[judgement.nearest].failed_requests:
        return "requests that fail break every budget, whatever the noise"
    cell = judgement.cells[judgement.nearest]
    broken = [
        limit
        for limit in judgement.budget.limits
        if (margins(judgement.budget, cell.metrics)[limit.key] or 0.0) > 0
    ]
    if not broken:
        return "not at all, as nothing has a value that a limit is about"
    surely = [limit for limit in broken if (_low(cell, limit) or 0.0) > (limit.limit_ms or 0.0)]
    bounds = joined(
        [
            f"{limit.key} is at least {figure(_low(cell, limit))} ms"
            for limit in surely or broken
            if _low(cell, limit) is not None
        ]
    )
    name = limits(cell.candidate)
    if surely:
        return f"with 95 % confidence {bounds} for {name}, still over the limit"
    known = f"with 95 % confidence {bounds}, which is within the limit, so " if bounds else ""
    return f"{known}another replay of {name} may keep the budget"


def _low(cell: Cell, limit: Limit) -> float | None:
    bound: float | None = (cell.intervals.get(limit.key) or (None, None))[0]
    return bound


def _repeats(judgement: Judgement) -> str:
    noise = judgement.noise
    if noise is None:
        alike = " in the same way, live or by a restart" if _both_ways(judgement) else ""
        return (
            f"No candidate was measured twice{alike}, so the noise between replays is not known."
        )
    spreads = joined([text for _, text in _spreads(judgement)]) or "nothing that was measured"
    return f"Repeats of one candidate differ {spreads} (one standard deviation, {_count(noise)})."


def _both_ways(judgement: Judgement) -> bool:
    """Whether a candidate was measured live and by a restart, which count apart."""
    return bool(judgement.steadiness.faithfulness)


def _little_room(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    """Say which limits another replay may break, as repeats differ by more than the room left."""
    if judgement.noise is None:
        return
    sigmas = dict(zip(judgement.names, judgement.noise.sigma, strict=True))
    tight = [
        limit.key
        for limit in judgement.budget.limits
        if (value := chosen.metrics.get(limit.key))
        and value * math.exp(sigmas.get(limit.key, 0.0)) > (limit.limit_ms or math.inf)
    ]
    if tight:
        yield (
            f"That is more than the room left below the limit on {joined(tight)}: another replay "
            "may break it."
        )


def _count(noise: Noise) -> str:
    return f"from {noise.degrees} {'repeat' if noise.degrees == 1 else 'repeats'}"


def _spreads(judgement: Judgement) -> list[tuple[float, str]]:
    if judgement.noise is None:
        return []
    return [
        (float(sigma), f"{_spread(float(sigma))} in {objective(name)}")
        for name, sigma in zip(judgement.names, judgement.noise.sigma, strict=True)
        if math.isfinite(sigma)
    ]


def _spread(sigma: float) -> str:
    factor = math.exp(sigma)
    if factor < _FACTOR_FROM:
        return f"by {100 * (factor - 1):.0f} %"
    return f"by a factor of {factor:.1f}"
