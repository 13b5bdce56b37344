"""Whether the machine stood still and live trials tell the truth, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.cli.changes import objective
from autotune.cli.tables import duration, joined, limits

if TYPE_CHECKING:
    from autotune.study.drift import Difference, Faithfulness, Steadiness, Trend

_EXPLAINED = {
    "kv_cache_tokens": "their KV caches have different sizes",
    "capture_sizes": "their engines captured different graphs",
    "unknown": "neither the size of the KV cache nor captured graphs explain it",
}

_WORTH_SAYING = 0.01
"""Relative differences below this are not worth a word, however certain."""

_LARGE = 1.25
"""Factor from which a difference is large, where no repeats tell what noise makes of it."""

_UNKNOWN = "nothing was measured twice in one way to say whether that is noise"


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
    within = duration(3600 * max(each.hours for each in trends.values()))
    moved = [
        f"{objective(name)} by {_percent(each.change)}"
        for name, each in trends.items()
        if each.flagged
    ]
    if not moved:
        return f"No drift: the baseline did not change by more than noise within {within}."
    return (
        f"Drift: within {within} the baseline changed in {joined(moved)}, which is more than "
        "noise, so trials far apart in time compare badly."
    )


def _faithfulness(steadiness: Steadiness) -> Iterator[str]:
    unlike: list[Faithfulness] = []
    alike: list[str] = []
    yield from _without_noise(steadiness.faithfulness)
    for each in steadiness.faithfulness:
        if any(map(_tells, each.differences.values())):
            unlike.append(each)
        elif any(d.beyond_noise is not None for d in each.differences.values()):
            alike.append(limits(each.candidate))
    if unlike:
        yield _unlike(unlike)
    if alike:
        yield (
            f"Live trials and restarts agree within {100 * _WORTH_SAYING:.0f} % or the noise at "
            f"{joined(alike)}."
        )


def _without_noise(cells: Sequence[Faithfulness]) -> Iterator[str]:
    """Say by how much both ways differ where nobody knows the noise."""
    near: list[str] = []
    for cell in cells:
        unknown = {n: d.change for n, d in cell.differences.items() if d.beyond_noise is None}
        if not unknown:
            continue
        large = {n: change for n, change in unknown.items() if _is_large(change)}
        name = limits(cell.candidate)
        if large:
            parts = [f"{objective(n)} by {_percent(change)}" for n, change in large.items()]
            yield (
                f"Live trials differ from restarts at {name}: {joined(parts)}; {_UNKNOWN}. "
                "Restarts alone decide."
            )
        elif len(unknown) == len(cell.differences):
            near.append(name)
    if near:
        yield (
            f"Live trials and restarts are within {100 * (_LARGE - 1):.0f} % of each other at "
            f"{joined(near)}; {_UNKNOWN}."
        )


def _is_large(change: float) -> bool:
    return change <= -1 or abs(math.log1p(change)) > math.log(_LARGE)


def _tells(difference: Difference) -> bool:
    return bool(difference.beyond_noise) and abs(difference.change) >= _WORTH_SAYING


def _unlike(cells: Sequence[Faithfulness]) -> str:
    found: dict[str, list[Difference]] = {}
    for each in cells:
        for name, difference in each.differences.items():
            if _tells(difference):
                found.setdefault(name, []).append(difference)
    parts = [f"{objective(name)} {_range(differences)}" for name, differences in found.items()]
    reasons = dict.fromkeys(reason for each in cells for reason in each.reasons)
    if len(reasons) > 1:
        reasons.pop("unknown", None)
    return (
        "Live trials differ from restarts by more than noise at "
        f"{joined([limits(each.candidate) for each in cells])}: {', '.join(parts)}; "
        f"{joined([_EXPLAINED[reason] for reason in reasons])}. Restarts alone decide."
    )


def _range(differences: Sequence[Difference]) -> str:
    """Return the changes, of a single one its interval too."""
    changes = sorted(each.change for each in differences)
    texts = list(dict.fromkeys(map(_percent, (changes[0], changes[-1]))))
    (first, *_), alone = differences, len(differences) == 1
    if alone and first.low is not None and first.high is not None:
        return f"{texts[0]} (90 % interval {_percent(first.low)} to {_percent(first.high)})"
    return " to ".join(texts)


def _percent(change: float) -> str:
    return f"{100 * change:+.0f} %"
