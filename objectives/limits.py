"""Latency limits as the user writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from objectives.classes import LengthClass
from objectives.errors import ObjectiveError, nearest_or_all
from objectives.statistics import AGGREGATES

METRICS = ("ttft", "tpot", "itl", "e2e")
DEFAULT_AGGREGATE = "p95"

_ALIASES = {"tbt": "itl", "e2el": "e2e"}
_VALUE = re.compile(
    r"(?P<number>[-+]?[0-9.]+(?:e[-+]?[0-9]+)?|[-+]?(?:nan|inf|infinity))(?P<unit>.*)"
)
_UNITS_MS = {"": 1.0, "ms": 1.0, "s": 1000.0}
_FORM = "write METRIC_AGGREGATE[@CLASS]:LIMIT, as in 'ttft_p95:800', 'itl_p99@short:60ms'."


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of a budget: exactly one of ``limit_ms`` and ``relative`` is given.

    Attributes:
        metric: one of ``METRICS``.
        aggregate: one of ``AGGREGATES``.
        class_name: the class of prompt length that it is asked of, None: all requests.
        limit_ms: the largest value that keeps it.
        relative: the same as a multiple of the baseline's value.

    Raises:
        ObjectiveError: unknown names, or a limit that is not positive and finite.
    """

    metric: str
    aggregate: str
    class_name: str | None = None
    limit_ms: float | None = None
    relative: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            known = (*METRICS, *_ALIASES)
            raise ObjectiveError(
                f"unknown metric {self.metric!r} in the budget.",
                hint=nearest_or_all(self.metric, known),
            )
        if self.aggregate not in AGGREGATES:
            raise ObjectiveError(
                f"unknown aggregate {self.aggregate!r} in the budget.",
                hint=nearest_or_all(self.aggregate, AGGREGATES),
            )
        given = [value for value in (self.limit_ms, self.relative) if value is not None]
        if len(given) != 1:
            raise ObjectiveError(f"{self.key} needs one limit, in ms or relative.", hint=_FORM)
        if not (math.isfinite(given[0]) and given[0] > 0):
            raise ObjectiveError(
                f"the limit of {self.key} must be positive and finite, not {given[0]:g}.",
                hint="leave the line out where there is no limit.",
            )

    @property
    def key(self) -> str:
        """Name of the value that it limits, such as ``ttft_p95`` or ``itl_p99@short``."""
        return metric_key(self.metric, self.aggregate, self.class_name)

    @property
    def text(self) -> str:
        """As ``parse_budget`` reads it, such as ``ttft_p95:800`` or ``ttft_p95:0.9x``."""
        if self.limit_ms is not None:
            return f"{self.key}:{_number(self.limit_ms)}"
        return f"{self.key}:{_number(self.relative or 0.0)}x"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits in the order the user gave them; no limits is a legal budget.

    One value may have an absolute and a relative limit, which both hold, but not two of a kind.
    """

    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        seen: set[tuple[str, bool]] = set()
        for limit in self.limits:
            kind = (limit.key, limit.relative is not None)
            if kind in seen:
                raise ObjectiveError(
                    f"the budget limits {limit.key} twice.", hint="keep the stricter line."
                )
            seen.add(kind)

    @property
    def text(self) -> str:
        return " ".join(limit.text for limit in self.limits)

    @property
    def absolute(self) -> tuple[Limit, ...]:
        """The limits in ms."""
        return tuple(limit for limit in self.limits if limit.limit_ms is not None)


def metric_key(metric: str, aggregate: str, class_name: str | None = None) -> str:
    """Return the name under which a measurement holds the value."""
    key = f"{metric}_{aggregate}"
    return key if class_name is None else f"{key}@{class_name}"


def parse_budget(text: str) -> Budget:
    """Read ``ttft_p95:800 itl_p99@short:60 tpot_p95:0.9x``; blanks or commas separate.

    Limits are in ms; ``800ms`` and ``0.8s`` say so, ``0.9x`` is relative to the baseline.
    ``tbt`` means ``itl`` and ``e2el`` means ``e2e``. A bare metric, as in the
    ``ttft:500`` of ``vllm bench serve --goodput``, limits its p95: 95 % of the requests keep
    what vLLM asks of each.

    Raises:
        ObjectiveError: anything else, with the nearest known name as the hint.
    """
    items = [item for item in re.split(r"[\s,]+", text.strip()) if item]
    return Budget(tuple(_parse_limit(item) for item in items))


def _parse_limit(item: str) -> Limit:
    name, colon, value = item.partition(":")
    if not (name and colon and value):
        raise ObjectiveError(f"{item!r} is no budget line.", hint=_FORM)
    name, at, class_name = name.partition("@")
    if at and not class_name:
        raise ObjectiveError(f"{item!r} names no class after '@'.", hint=_FORM)
    metric, _, aggregate = name.lower().partition("_")
    limit_ms, relative = _parse_value(item, value)
    return Limit(
        metric=_ALIASES.get(metric, metric),
        aggregate=aggregate or DEFAULT_AGGREGATE,
        class_name=class_name or None,
        limit_ms=limit_ms,
        relative=relative,
    )


def _parse_value(item: str, text: str) -> tuple[float | None, float | None]:
    """Return (limit in ms, None) or (None, multiple of the baseline)."""
    match = _VALUE.fullmatch(text.lower())
    try:
        number = float(match["number"]) if match else None
    except ValueError:
        number = None
    if match is None or number is None:
        raise ObjectiveError(f"{text!r} in {item!r} is no limit.", hint=_FORM)
    unit = match["unit"]
    if unit in {"x", "×"}:
        return None, number
    if unit not in _UNITS_MS:
        raise ObjectiveError(
            f"unknown unit {unit!r} in {item!r}.", hint="use ms (the default), s, or x (relative)."
        )
    return number * _UNITS_MS[unit], None


def check_classes(budget: Budget, classes: Iterable[LengthClass]) -> None:
    """Raise ``ObjectiveError`` if a limit names a class that is not among ``classes``."""
    known = [each.name for each in classes]
    for limit in budget.limits:
        if limit.class_name is not None and limit.class_name not in known:
            raise ObjectiveError(
                f"the budget limits {limit.key}, but there is no class {limit.class_name!r}.",
                hint=nearest_or_all(limit.class_name, known)
                or "the prompts form one group; define classes with --classes.",
            )


def _number(value: float) -> str:
    """Shortest text that reads back as the same number."""
    return repr(int(value)) if value.is_integer() and value < 1e15 else repr(value)
