"""Classes of prompt length: chats and documents suffer differently."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from objectives.arrays import F8, I8, Bools
from objectives.errors import ObjectiveError

_CLASS = re.compile(r"(?P<name>[A-Za-z][\w-]*):(?P<low>[0-9]{1,9})-(?P<high>[0-9]{0,9})")
_FORM = (
    "classes are written NAME:LOW-HIGH, the last one NAME:LOW-, as in 'short:0-2000 long:2000-'; "
    "lengths have at most 9 digits"
)

# Figures of ``default_classes``, see there.
_SMALLEST_SHARE = 0.05
_WINDOW_LOG = 0.3
_VALLEY_DEPTH = 0.25
_SIGNIFICANCE = 3.5
_FINEST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class LengthClass:
    """The requests with ``low <= prompt_tokens < high``; ``high`` None: no upper end."""

    name: str
    low: int
    high: int | None

    @property
    def text(self) -> str:
        return f"{self.name}:{self.low}-{'' if self.high is None else self.high}"


def classes_text(classes: Iterable[LengthClass]) -> str:
    """Return classes as ``parse_classes`` reads them."""
    return " ".join(each.text for each in classes)


def parse_classes(text: str) -> tuple[LengthClass, ...]:
    """Read ``short:0-2000 long:2000-``; blanks or commas separate, ``''`` means no classes.

    Classes need not cover all lengths. Returned in order of length.

    Raises:
        ObjectiveError: not of that form, empty range, overlapping, or a name twice.
    """
    classes = [_parse_class(item) for item in re.split(r"[\s,]+", text.strip()) if item]
    names = [each.name for each in classes]
    for name in names:
        if names.count(name) > 1:
            raise ObjectiveError(f"class {name!r} is given twice.", hint="rename one of them.")
    classes.sort(key=lambda each: each.low)
    for left, right in itertools.pairwise(classes):
        if left.high is None or left.high > right.low:
            raise ObjectiveError(
                f"classes {left.text!r} and {right.text!r} overlap.",
                hint=f"the upper end is excluded: write {left.name}:{left.low}-{right.low}.",
            )
    return tuple(classes)


def _parse_class(item: str) -> LengthClass:
    match = _CLASS.fullmatch(item)
    if match is None:
        raise ObjectiveError(f"{item!r} is no class of prompt length.", hint=_FORM)
    low, high = int(match["low"]), int(match["high"]) if match["high"] else None
    if high is not None and high <= low:
        raise ObjectiveError(
            f"class {item!r} holds no length.", hint="the upper end must be above the lower."
        )
    return LengthClass(match["name"], low, high)


def class_mask(prompt_tokens: I8, length_class: LengthClass) -> Bools:
    """Return which requests (one entry each) belong to the class."""
    inside = prompt_tokens >= length_class.low
    if length_class.high is not None:
        inside &= prompt_tokens < length_class.high
    return inside


def default_classes(prompt_tokens: I8) -> tuple[LengthClass, ...]:
    """Cut the lengths once, into ``short`` and ``long``, if they clearly form two groups.

    A cut is possible between two neighbouring lengths if it lies in a valley of the histogram
    of ln(length + 16) (window of 0.3, that is 35 % in length): each side holds at least 5 % of
    the requests, the window at the cut holds at most a quarter of what the fullest window on
    either side holds, and the smaller of those two peaks exceeds the valley by 3.5 standard
    deviations of their counts, so that the thin tail of one group is no second group. Of the
    possible cuts the one at the largest gap in log length is taken. The 16 tokens (one KV
    block) keep the tiny prompts together; a group needs at least 13 requests to be seen.

    Returns:
        Two classes that cover all lengths, or ``()`` where the lengths form one group.
    """
    lengths = np.sort(prompt_tokens)
    logs = np.log(lengths + float(_FINEST_TOKENS))
    edge = max(1, int(np.ceil(_SMALLEST_SHARE * logs.size)))
    if logs.size < 2 * edge:
        return ()
    after = np.arange(edge, logs.size - edge + 1)
    gaps = logs[after] - logs[after - 1]
    cuts = (logs[after] + logs[after - 1]) / 2
    valley = _window_counts(logs, cuts)
    counts = _window_counts(logs, logs)
    peak = np.minimum(
        np.maximum.accumulate(counts)[after - 1],
        np.maximum.accumulate(counts[::-1])[::-1][after],
    )
    deep = valley <= _VALLEY_DEPTH * peak
    certain = peak - valley > _SIGNIFICANCE * np.sqrt(peak + valley)
    possible = np.flatnonzero(deep & certain & (gaps > 0))
    if not possible.size:
        return ()
    best = possible[np.argmax(gaps[possible])]
    below = int(after[best]) - 1
    cut = _round_between(int(lengths[below]), int(lengths[below + 1]))
    return LengthClass("short", 0, cut), LengthClass("long", cut, None)


def _window_counts(logs: F8, centres: F8) -> I8:
    low = np.searchsorted(logs, centres - _WINDOW_LOG / 2, side="left")
    high = np.searchsorted(logs, centres + _WINDOW_LOG / 2, side="right")
    return (high - low).astype(np.int64)


def _round_between(low: int, high: int) -> int:
    """Return the roundest whole number in (low, high], near its geometric middle."""
    middle = float(np.sqrt(low * high))
    for digits in range(len(str(high)) - 1, 0, -1):
        rounded = round(middle, -digits)
        if low < rounded <= high:
            return int(rounded)
    return high
