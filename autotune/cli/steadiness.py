"""Whether the machine stood still and live trials tell the truth, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from autotune.cli.changes import objective
from autotune.cli.tables import joined, limits

if TYPE_CHECKING:
    from autotune.study.drift import Difference, Faithfulness, Steadiness, Trend

_EXPLAINED = {
    "kv_cache_tokens": "their KV caches have different sizes",
    "capture_sizes": "their engines captured different graphs",
    "unknown": "neither the size of the KV cache nor captured graphs explain it",
}

_WORTH_SAYING = 0.01
"""Relative differences below this are not worth a word, however certain."""


def steadiness_lines(steadiness: Steadiness) -> Iterator[str]:
    """Say what repeats showed; nothing for a study of restarts alone."""
    if steadiness.spread:
        trials = max(each.trials for each in steadiness.spread.values())
        spreads = [
            f"by {100 * each.sigma:.1f} % in {objective(name)}"
            for name, each in steadiness.spread.items()
        ]
        yield (
            f"Sentinels: {trials} live trials of the baseline differ {joined(spreads)} (one "
            "standard deviation)."
        )
    if steadiness.drift:
        yield _drift(steadiness.drift)
    yield from _faithfulness(steadiness)


def _drift(trends: Mapping[str, Trend]) -> str:
    hours = max(each.hours for each in trends.values())
    moved = [
        f"{objective(name)} by {100 * each.change:+.0f} %"
        for name, each in trends.items()
        if each.flagged
    ]
    if not moved:
        return f"No drift: the baseline did not change by more than noise in {hours:.1f} h."
    return (
        f"Drift: within {hours:.1f} h the baseline changed in {joined(moved)}, which is more than "
        "noise, so trials far apart in time compare badly."
    )


def _faithfulness(steadiness: Steadiness) -> Iterator[str]:
    alike = []
    for each in steadiness.faithfulness:
        beyond = {
            name: d
            for name, d in each.differences.items()
            if d.beyond_noise and abs(d.change) >= _WORTH_SAYING
        }
        if beyond:
            yield _unlike(each, beyond)
        elif any(d.beyond_noise is not None for d in each.differences.values()):
            alike.append(limits(each.candidate))
    if alike:
        yield (
            f"Live trials and restarts agree within {100 * _WORTH_SAYING:.0f} % or the noise at "
            f"{joined(alike)}."
        )


def _unlike(cell: Faithfulness, beyond: Mapping[str, Difference]) -> str:
    parts = [
        f"{objective(name)} {_percent(each.change)}{_bounds(each)}"
        for name, each in beyond.items()
    ]
    why = joined([_EXPLAINED[reason] for reason in cell.reasons])
    return (
        f"Live trials of {limits(cell.candidate)} differ from its restarts by more than noise: "
        f"{', '.join(parts)}; {why}."
    )


def _bounds(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return ""
    return f" (90 % interval {_percent(difference.low)} to {_percent(difference.high)})"


def _percent(change: float) -> str:
    return f"{100 * change:+.0f} %"
