"""Monotone curves over tokens or requests, and how they are fitted to the times of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from autotune.forecast.fitting import robust_fit
from objectives.arrays import F8, I8
from objectives.steps import COLUMNS, Steps

_REPEATED = 3
_ROWS_A_KNOT = 12
_OCTAVE_SHARE = 1 / 12
_PRICES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A line that never falls, through knots by ascending ``x``.

    Counts up to the largest captured size are padded to a captured one first, as their steps
    are. Below the first knot the line is level. Beyond the last it rises as over the last
    doubling, of which the jump at the capture limit is no part.

    Attributes:
        x: counts of the knots.
        y: seconds at them.
        sizes: token counts with a CUDA graph, ascending; none on a CPU.
    """

    x: F8
    y: F8
    sizes: tuple[int, ...]

    def __call__(self, counts: F8 | I8) -> F8:
        at = padded(counts, self.sizes)
        beyond = np.maximum(0.0, at - self.x[-1])
        return np.asarray(np.interp(at, self.x, self.y) + self._last_slope() * beyond)

    def _last_slope(self) -> float:
        limit = self.sizes[-1] if self.sizes else 0
        beyond = self.x > limit
        same = beyond if beyond[-1] and beyond.sum() > 1 else ~beyond
        x, y = self.x[same], self.y[same]
        if x.size < 2:
            return 0.0
        begin = max(x[-1] / 2, x[0])
        return float((y[-1] - np.interp(begin, x, y)) / (x[-1] - begin))

    def dense(self, most: int) -> F8:
        """Return the times for 0 to ``most``; nothing takes no time."""
        table = self(np.arange(most + 1))
        table[0] = 0.0
        return table

    def scaled(self, factor: float) -> Self:
        return type(self)(self.x, self.y * factor, self.sizes)

    def to_json(self) -> dict[str, list[float]]:
        return {"x": self.x.tolist(), "y": self.y.tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], sizes: tuple[int, ...]) -> Self:
        return cls(np.array(data["x"], np.float64), np.array(data["y"], np.float64), sizes)


def padded(counts: F8 | I8, sizes: Sequence[int]) -> F8:
    """Return the captured size that each count runs as, itself beyond the largest."""
    at = np.asarray(counts, dtype=np.float64)
    if not sizes:
        return at
    captured = np.asarray(sizes, dtype=np.float64)
    place = np.minimum(np.searchsorted(captured, at), captured.size - 1)
    return np.asarray(np.where(at <= captured[-1], captured[place], at))


def choose_knots(counts: F8, limit: int) -> F8:
    """Return where a curve may bend: at what was measured repeatedly, and between by a few.

    The first knot beyond the capture limit is the count right after it: the jump is there.

    Args:
        counts: of the steps, padded; at least one.
        limit: the most tokens of a step that runs as a CUDA graph, 0 if none does.
    """
    values, repeats = np.unique(counts, return_counts=True)
    knots = [float(values[0])]
    rows = 0
    for value, count in zip(values[1:], repeats[1:], strict=True):
        rows += int(count)
        apart = np.log2(value / knots[-1]) >= _OCTAVE_SHARE
        if count >= _REPEATED or (rows >= _ROWS_A_KNOT and apart):
            knots.append(float(value))
            rows = 0
    if knots[-1] < values[-1]:
        knots.append(float(values[-1]))
    found = np.array(knots)
    beyond = found > limit
    if limit > 0 and beyond.any():
        found[np.argmax(beyond)] = limit + 1
        if values[-1] > found[-1]:
            found = np.append(found, values[-1])
    return found


def ramps(counts: F8, knots: F8) -> F8:
    """Return [rows, knots]: one, and how far each count is from each knot to the next."""
    share = (counts[:, None] - knots[:-1]) / np.diff(knots)
    return np.column_stack([np.ones(counts.size), np.clip(share, 0.0, 1.0)])


def time_bins(times_s: F8, width_s: float) -> I8:
    """Return the number of the bin of each step: equal shares of the time, about that wide.

    A step of no time is in the bin of the one before.
    """
    total_s = float(times_s.sum())
    count = max(1, round(total_s / width_s))
    middle_s = np.cumsum(times_s) - times_s / 2
    bins = np.minimum((middle_s / total_s * count).astype(np.int64), count - 1)
    last = np.maximum.accumulate(np.where(times_s > 0, np.arange(times_s.size), 0))
    return np.unique(bins[last], return_inverse=True)[1].astype(np.int64)


def joined(recordings: Sequence[Steps]) -> Steps:
    """Return the steps of several recordings after each other; their clocks are not aligned."""
    columns = {
        each.name: np.concatenate([getattr(steps, each.name) for steps in recordings])
        for each in fields(Steps)
    }
    return Steps(**columns)


def made_steps(
    *, prefill: F8, decodes: F8, requests: F8, decode_kv_tokens: F8, prefill_pairs: F8
) -> Steps:
    """Return steps of such work that took no time."""
    rows = np.zeros((prefill.size, len(COLUMNS)))
    for name, column in {
        "prefill_tokens": prefill,
        "decode_requests": decodes,
        "requests": requests,
        "decode_kv_tokens": decode_kv_tokens,
        "prefill_pairs": prefill_pairs,
    }.items():
        rows[:, COLUMNS.index(name)] = column
    return Steps.from_rows(rows)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Which columns a fit has: the knots of both curves, and three prices."""

    decode: F8
    mixed: F8
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, steps: Steps, sizes: tuple[int, ...]) -> Self:
        """Choose knots by what the steps show; where one kind is missing, as for the other."""
        counts, limit = padded(steps.tokens, sizes), max(sizes, default=0)
        prefills = steps.prefill_tokens > 0
        decode, mixed = (
            choose_knots(counts[kind] if kind.any() else counts, limit)
            for kind in (~prefills, prefills)
        )
        return cls(decode, mixed, sizes)

    def joined(self, decode: F8, mixed: F8) -> Self:
        """Return a layout that has these knots too."""
        return type(self)(
            np.union1d(self.decode, decode), np.union1d(self.mixed, mixed), self.sizes
        )

    def design(self, steps: Steps) -> F8:
        """Return [steps, columns]."""
        counts = padded(steps.tokens, self.sizes)
        mixed = steps.prefill_tokens > 0
        return np.column_stack(
            [
                ramps(counts, self.decode) * ~mixed[:, None],
                ramps(counts, self.mixed) * mixed[:, None],
                steps.decode_kv_tokens,
                steps.prefill_pairs,
                np.maximum(0, steps.requests - 1) * mixed,
            ]
        )

    def fit(self, steps: Steps, weights: F8) -> dict[str, Any]:
        """Return both curves and the three prices by their names in ``StepTimes``."""
        found = robust_fit(self.design(steps), steps.done_s - steps.begun_s, weights)
        rises = np.split(found[:-_PRICES], [self.decode.size])
        decode, mixed = (
            Curve(knots, np.cumsum(rise), self.sizes)
            for knots, rise in zip((self.decode, self.mixed), rises, strict=True)
        )
        kv_token_s, pair_s, request_s = found[-_PRICES:].tolist()
        # The column has the requests beyond the first: most sweeps show the price of no other.
        first = Curve(mixed.x, np.maximum(0.0, mixed.y - request_s), self.sizes)
        return {
            "decode": decode if decode.y.any() else mixed,
            "mixed": first if mixed.y.any() else decode,
            "kv_token_s": kv_token_s,
            "pair_s": pair_s,
            "request_s": request_s,
        }
