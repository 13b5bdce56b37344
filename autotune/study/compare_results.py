"""What a comparison found, which of it is not fair, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.settings import SIMULATED, TuneSettings
from autotune.study.compare_sides import About, Replayed
from autotune.study.comparison import CONFIDENCE, Difference
from autotune.study.replays import client_bound
from autotune.study.session import Traffic
from objectives.limits import Budget
from objectives.measurement import Measurement
from storage.codec import plain

RATES = ("request_throughput", "output_throughput", "total_token_throughput", "goodput")
"""Of a side, per second."""


@dataclass(frozen=True, slots=True, eq=False)
class SideResult:
    """All replays of one side, and what they measured."""

    about: About
    replays: tuple[Replayed, ...]
    measured: tuple[Measurement, ...]

    @property
    def exact(self) -> bool:
        return all(each.exact for each in self.replays)

    @property
    def failed(self) -> int:
        return sum(each.failed_requests for each in self.measured)

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self.measured)

    def mean(self, metric: str) -> float | None:
        """Return the mean over the replays of a measured value, None if one has none."""
        values = [each.metrics[metric] for each in self.measured]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What a comparison found.

    Attributes:
        settings: what was asked for.
        traffic: that all sides replayed.
        order: names of the sides, as they took their turns.
        sides: the first is the one that the others are compared with.
        differences: for each side but the first.
        caveats: which comparisons are not fair, and why, in sentences.
    """

    settings: TuneSettings
    traffic: Traffic
    order: tuple[str, ...]
    sides: tuple[SideResult, ...]
    differences: tuple[tuple[Difference, ...], ...]
    caveats: tuple[str, ...]

    @property
    def simulated(self) -> str | None:
        """The profile by which engines were simulated, None if none was."""
        engines = any(side.about.kind == "engine" for side in self.sides)
        if not engines or not self.settings.simulated:
            return None
        return self.settings.engine.removeprefix(SIMULATED)


def caveats(sides: Sequence[SideResult], traffic: Traffic, *, repeats: int) -> list[str]:
    """Return what stands in the way of a fair comparison, in sentences."""
    found = []
    abouts = [side.about for side in sides]
    models = {about.model.rstrip("/").rsplit("/", 1)[-1] for about in abouts}
    if len(models) > 1:
        told = ", ".join(f"{about.name} {about.model}" for about in abouts)
        found.append(
            f"The sides serve other models ({told}): what differs is not the serving alone, and "
            "their tokenizers may cut other tokens."
        )
    by_text = [about.name for about in abouts if not about.forced]
    if by_text:
        found.append(
            f"Lengths are not forced with {_and(by_text)}: answers end where the model ends "
            "them, and prompts are text of about as many tokens. Only TTFT and the figures per "
            "token are compared; rates are of what each produced."
        )
    engines = [about.name for about in abouts if about.kind == "engine"]
    if engines and len(engines) < len(abouts):
        found.append(
            f"In process: {_and(engines)}. The others are asked over HTTP, which is part of their "
            "figures."
        )
    for side in sides:
        found += _caveats_of(side, traffic)
    if repeats == 1:
        found.append("Without repeats the noise between replays is not known: intervals lack it.")
    return found


def _caveats_of(side: SideResult, traffic: Traffic) -> list[str]:
    name, found = side.about.name, []
    if not side.exact:
        found.append(
            f"The tokens of {name} are estimated: a delivery counts as one token, so its gaps are "
            "those between deliveries."
        )
    if side.failed:
        cause = next((error for each in side.replays for error in each.errors), "")
        found.append(
            f"{name}: {side.failed} of {side.requests} requests failed, and count as infinitely "
            f"late{': ' if cause else ''}{cause}."
        )
    budget = Budget(traffic.budget.absolute)
    late = [fault for each in side.measured if (fault := client_bound(each, budget)) is not None]
    if late:
        found.append(f"{name}: {late[0].evidence}; do not trust its figures.")
    return found


def _and(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain JSON values."""
    trace = found.traffic.trace
    whole = {
        "trace": found.settings.trace,
        "window": found.settings.window,
        "trace_sha256": trace.sha256,
        "requests": len(trace.requests),
        "order": list(found.order),
        "confidence": CONFIDENCE,
        "sides": [side_json(side) for side in found.sides],
        "differences": [
            {
                "first": found.sides[0].about.name,
                "second": side.about.name,
                "metrics": {each.metric: difference_json(each) for each in own},
            }
            for side, own in zip(found.sides[1:], found.differences, strict=True)
        ],
        "caveats": list(found.caveats),
    }
    # Results of real engines are without it, as everywhere.
    named = {} if found.simulated is None else {"simulated": found.simulated}
    return plain({**whole, **named}, name="comparison")


def side_json(side: SideResult) -> dict[str, Any]:
    """Return one side as plain JSON values."""
    return {
        "name": side.about.name,
        "kind": side.about.kind,
        "model": side.about.model,
        "limits": dict(side.about.limits),
        "lengths": "forced" if side.about.forced else "not forced",
        "usage": "exact" if side.exact else "estimated",
        "failed": side.failed,
        "rates": {name: side.mean(name) for name in RATES},
        "replays": [
            {
                "failed": each.failed_requests,
                "duration_s": each.window_s,
                "send_lag_p99_ms": each.send_lag_p99_ms,
                "metrics": dict(each.metrics),
                "errors": list(own.errors),
            }
            for own, each in zip(side.replays, side.measured, strict=True)
        ],
    }


def difference_json(each: Difference) -> dict[str, Any]:
    """Return one difference as plain JSON values."""
    return {
        "first_ms": each.first,
        "second_ms": each.second,
        "difference_ms": each.difference,
        "low_ms": each.low,
        "high_ms": each.high,
        "share": each.share,
    }
