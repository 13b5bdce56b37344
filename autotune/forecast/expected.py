"""How long steps take according to a calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from autotune.forecast.calibration import Calibration
from autotune.forecast.fitting import rising
from objectives.arrays import F8, Bools
from objectives.steps import Steps


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A line that never falls, through points by ascending ``x``; beyond them it goes on.

    Below the first point it is level, above the last it rises as it did over the last doubling.
    """

    x: F8
    y: F8

    @classmethod
    def through(cls, x: F8, y: F8, weights: F8) -> Self:
        return cls(x, rising(y, weights))

    def __call__(self, at: F8) -> F8:
        last_x, last_y = self.x[-1], self.y[-1]
        half = np.interp(last_x / 2, self.x, self.y)
        slope = (last_y - half) / (last_x / 2)
        return np.asarray(np.interp(at, self.x, self.y) + slope * np.maximum(0, at - last_x))


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The time of any step with one in flight: tokens, plus what their contexts add.

    With steps planned ahead it is too long, by a ratio that depends on the kind of step.

    Attributes:
        captured: seconds by tokens, for steps with prefill that run as a CUDA graph.
        uncaptured: the same for all others.
        decode: seconds by requests, for steps without prefill.
        capture_limit: the most tokens of the former, 0 without CUDA graphs.
        kv_token_s: for each token of context that decodes read.
        pair_s: for each attention pair of the prefill.
    """

    captured: Curve
    uncaptured: Curve
    decode: Curve
    capture_limit: int
    kv_token_s: float
    pair_s: float

    @classmethod
    def of(cls, calibration: Calibration) -> Self | None:
        """Return the times that a calibration allows, None where it has no point or no batch.

        Contexts cost nothing where no probe priced them.
        """
        points, batches = calibration.points, calibration.batches
        if not points or not batches:
            return None
        pair_s = (calibration.pair_ns or 0.0) * 1e-9
        kv_token_s = (calibration.kv_token_ns or 0.0) * 1e-9
        limit = calibration.capture_limit or 0
        tokens = np.array([float(each.tokens) for each in points])
        times_s = np.array([each.median_ms / 1e3 for each in points]) - pair_s * _fresh(tokens)
        counts = np.array([float(each.repeats) for each in points])

        def branch(mask: Bools) -> Curve:
            # Where the sweep has nothing on one side of the limit, the other stands for it.
            own = mask if mask.any() else ~mask
            return Curve.through(tokens[own], times_s[own], counts[own])

        kv = np.array([each.kv_tokens for each in batches])
        return cls(
            captured=branch(tokens <= limit),
            uncaptured=branch(tokens > limit),
            decode=Curve.through(
                np.array([float(each.requests) for each in batches]),
                np.array([each.median_ms / 1e3 for each in batches]) - kv_token_s * kv,
                np.array([float(each.repeats) for each in batches]),
            ),
            capture_limit=limit,
            kv_token_s=kv_token_s,
            pair_s=pair_s,
        )

    def expected_s(self, steps: Steps) -> F8:
        """Return the expected time of each step."""
        tokens = steps.tokens.astype(np.float64)
        prefill_s = np.where(
            tokens <= self.capture_limit, self.captured(tokens), self.uncaptured(tokens)
        )
        base_s = np.where(
            steps.prefill_tokens > 0,
            prefill_s,
            self.decode(steps.decode_requests.astype(np.float64)),
        )
        context_s = self.pair_s * steps.prefill_pairs + self.kv_token_s * steps.decode_kv_tokens
        return np.asarray(np.maximum(base_s + context_s, 0.0), dtype=np.float64)


def _fresh(tokens: F8) -> F8:
    return tokens * (tokens + 1) / 2
