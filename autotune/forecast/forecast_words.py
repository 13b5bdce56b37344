"""Forecasts in words, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotune.candidates.lattice import SEQS, TOKENS, Candidate
from autotune.forecast.residuals import LEAST_TRUST

Row = tuple[Candidate, Mapping[str, tuple[float, float, float]], float | None, str]

_CERTAIN = 0.01
_UNITS = {"tokens_per_busy_s": "tokens/s"}


def table(rows: Sequence[Row]) -> list[str]:
    """Return a table of candidates, with the 90 % range of each metric.

    Args:
        rows: candidate, bounds and mean of each metric, probability of keeping the budget, and
            where that comes from.
    """
    if not rows:
        return []
    keys = list(rows[0][1])
    further = [name for name in rows[0][0] if name not in (TOKENS, SEQS)]
    heads = ["tokens/seqs", *further, *keys, "keeps budget", ""]
    cells = [
        [
            f"{candidate[TOKENS]}/{candidate[SEQS]}",
            *(str(candidate[name]) for name in further),
            *(_range(metrics[key]) for key in keys),
            "-" if probability is None else percent(probability, short=True),
            source,
        ]
        for candidate, metrics, probability, source in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [heads, *cells]
    ]


def percent(probability: float, *, short: bool = False) -> str:
    """Return a probability as a sentence, or in ``short`` a table, has it.

    Never 0 or 100 %: nothing that is forecast is certain.
    """
    if probability < _CERTAIN:
        return "<1 %" if short else "less than 1 %"
    if probability > 1 - _CERTAIN:
        return ">99 %" if short else "more than 99 %"
    return f"{100 * probability:.0f} %"


def judged_line(budget: str) -> str:
    """Return what a table of forecasts is about, its traffic and its budget."""
    judged = f"judged by {budget}" if budget else "without a budget to judge by"
    return f"At today's traffic, {judged}:"


def metrics_line(metrics: Mapping[str, tuple[float, float, float]]) -> str:
    """Return the metrics of a forecast, with their ranges."""
    return ", ".join(f"{name} {_range(bounds)}" for name, bounds in metrics.items())


def at_load_line(
    load: float, metrics: Mapping[str, float | None], broken: Sequence[str] | None
) -> str:
    """Return the metrics at a multiple of the traffic, and the limits that they break.

    Args:
        load: the multiple.
        metrics: by key, in ms or as they are.
        broken: keys of the limits; None without a budget.
    """
    shown = ", ".join(f"{name} {_with_unit(name, value)}" for name, value in metrics.items())
    if broken is None:
        verdict = ""
    elif broken:
        *most, last = broken
        names = f"{', '.join(most)} and {last} break" if most else f"{last} breaks"
        verdict = f": {names} the budget"
    else:
        verdict = ": the budget is kept"
    return f"At {load:g} times today's traffic: {shown}{verdict}."


def _with_unit(name: str, value: float | None) -> str:
    if value is None or math.isinf(value):
        return _value(value)
    if name == "utilization":
        return f"{100 * value:.0f} %"
    return f"{_short(value)} {_UNITS.get(name, 'ms')}"


def _range(bounds: tuple[float, float, float]) -> str:
    low, mean, high = bounds
    if not math.isfinite(mean):
        return _value(None if math.isnan(mean) else mean)
    return f"{_short(mean)} ({_short(low)} to {_short(high)})"


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    return "never ends" if math.isinf(value) else _short(value)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def trust_line(trust: float) -> str:
    """Return how far the forecasts can be trusted."""
    if trust < LEAST_TRUST:
        return (
            "Measurements contradict these forecasts: the study searches without them "
            f"(probability that they are of use: {percent(trust)})."
        )
    return (
        "Ranges hold what 9 of 10 candidates do on average, and single replays vary beyond them, "
        f"if the forecasts are of use (probability: {percent(trust)})."
    )


def load_line(load: float | None, most: float) -> str:
    """Return up to which load the budget is kept."""
    if load is None:
        return "The budget is not kept at today's traffic."
    if load >= most:
        return f"The budget holds at {most:g} times today's traffic; more was not simulated."
    times = f"{load:.2g}"
    if times == "1":
        return "The budget holds today's traffic and no more."
    return f"The budget holds up to {times} times today's traffic."
