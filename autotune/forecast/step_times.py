"""How long any step takes, from steps that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from autotune.forecast.step_fit import (
    Curve,
    choose_knots,
    padded,
    ramps,
    robust_fit,
    sums,
    time_bins,
    worked_s,
)
from objectives.arrays import F8, Bools
from objectives.steps import Steps

ERROR_BIN_S = 0.5
"""The time over which the sums are taken whose error is stated."""

_LEAST_ERROR = 0.01
_FOLDS = 4
_PRICES = 3


@dataclass(frozen=True, slots=True)
class Known:
    """What was measured; beyond it times are carried on.

    Attributes:
        tokens: the fewest and the most in a step with prefill.
        decode_requests: the fewest and the most in a step without.
        decode_context: the longest mean context of decodes.
        prefill_context: the longest mean context that tokens of prefill see.
    """

    tokens: tuple[int, int]
    decode_requests: tuple[int, int]
    decode_context: float
    prefill_context: float

    @classmethod
    def of(cls, steps: Steps) -> Self:
        mixed = steps.prefill_tokens > 0
        return cls(
            tokens=_range(steps.tokens[mixed]),
            decode_requests=_range(steps.decode_requests[~mixed]),
            decode_context=float(_decode_context(steps).max(initial=0.0)),
            prefill_context=float(_prefill_context(steps).max(initial=0.0)),
        )

    def covers(self, steps: Steps) -> Bools:
        """Whether each step is within what was measured."""
        mixed = steps.prefill_tokens > 0
        low = np.where(mixed, self.tokens[0], self.decode_requests[0])
        high = np.where(mixed, self.tokens[1], self.decode_requests[1])
        near = _decode_context(steps) <= self.decode_context
        near &= _prefill_context(steps) <= self.prefill_context
        return np.asarray((low <= steps.tokens) & (steps.tokens <= high) & near)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        tokens, requests = (tuple(data[name]) for name in ("tokens", "decode_requests"))
        return cls(**{**data, "tokens": tokens, "decode_requests": requests})


def _range(counts: Any) -> tuple[int, int]:
    return (int(counts.min()), int(counts.max())) if counts.size else (0, 0)


def _decode_context(steps: Steps) -> F8:
    return np.asarray(steps.decode_kv_tokens / np.maximum(1, steps.decode_requests))


def _prefill_context(steps: Steps) -> F8:
    return np.asarray(steps.prefill_pairs / np.maximum(1, steps.prefill_tokens))


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """What a step takes that is planned when nothing else runs.

    A step without prefill takes ``decode_s[decoding requests]``, one with prefill
    ``mixed_s[tokens] + request_s * requests``; to both come ``kv_token_s`` for each token of
    context that decodes read and ``pair_s`` for each attention pair of the prefill.

    Attributes:
        decode: by decoding requests, contexts free.
        mixed: by all tokens of a step, contexts and requests free.
        max_tokens: the last index of ``mixed_s``.
        max_seqs: the last index of ``decode_s``.
        kv_token_s: each token of context that decodes read.
        pair_s: each attention pair of the prefill, those of a fresh prompt among them.
        request_s: each request with a part in a step with prefill.
        host_s: the part of a step that the host does beforehand, and that is hidden while
            another step runs.
        host_request_s: the same for each request in the step.
        error: relative standard error of sums over about 0.5 s, from held-out steps.
        known: what was measured.
        decode_s: dense table of ``decode``, [max_seqs + 1]; index 0 is 0.
        mixed_s: dense table of ``mixed``, [max_tokens + 1]; index 0 is 0.
    """

    decode: Curve
    mixed: Curve
    max_tokens: int
    max_seqs: int
    kv_token_s: float
    pair_s: float
    request_s: float
    host_s: float
    host_request_s: float
    error: float
    known: Known
    decode_s: F8 = field(init=False)
    mixed_s: F8 = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decode_s", self.decode.dense(self.max_seqs))
        object.__setattr__(self, "mixed_s", self.mixed.dense(self.max_tokens))

    def expected_s(self, steps: Steps) -> F8:
        """Return what each step takes from planning on, with one in flight."""
        base_s = np.where(
            steps.prefill_tokens > 0,
            self.mixed(steps.tokens) + self.request_s * steps.requests,
            self.decode(steps.decode_requests),
        )
        context_s = self.kv_token_s * steps.decode_kv_tokens + self.pair_s * steps.prefill_pairs
        return np.asarray(base_s + context_s)

    def overlapped_s(self, steps: Steps) -> F8:
        """Return the period of each step where the host plans ahead.

        Of steps that were planned after the one before was done, what they take alone.
        """
        alone_s = self.expected_s(steps)
        if not len(steps):
            return alone_s
        host_s = self.host_s + self.host_request_s * steps.requests
        ahead = np.concatenate([[False], steps.begun_s[1:] < steps.done_s[:-1]])
        return np.where(ahead, np.maximum(alone_s - host_s, host_s), alone_s)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: the knots of the curves, not the tables."""
        return {
            "decode": self.decode.to_json(),
            "mixed": self.mixed.to_json(),
            "capture_sizes": list(self.mixed.sizes),
            "max_tokens": self.max_tokens,
            "max_seqs": self.max_seqs,
            "kv_token_s": self.kv_token_s,
            "pair_s": self.pair_s,
            "request_s": self.request_s,
            "host_s": self.host_s,
            "host_request_s": self.host_request_s,
            "error": self.error,
            "known": asdict(self.known),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        values = dict(data)
        sizes = tuple(values.pop("capture_sizes"))
        values["decode"] = Curve.from_json(values["decode"], sizes)
        values["mixed"] = Curve.from_json(values["mixed"], sizes)
        values["known"] = Known.from_json(values["known"])
        return cls(**values)

    @classmethod
    def fit(
        cls, steps: Steps, *, capture_sizes: Sequence[int], max_tokens: int, max_seqs: int
    ) -> Self:
        """Fit to steps with one in flight: a sweep, replays without async scheduling, or both.

        Where steps of one kind are missing, the curve of the other stands for theirs; contexts
        and requests cost nothing where nothing shows their price.

        Args:
            steps: of known work; those of several recordings may follow each other.
            capture_sizes: token counts for which there are CUDA graphs.
            max_tokens: the most tokens of a step that will be asked for.
            max_seqs: the most decoding requests.

        Raises:
            ValueError: no step took any time.
        """
        steps = steps.select((steps.tokens > 0) & (worked_s(steps) > 0))
        if not len(steps):
            raise ValueError("no step to learn from")
        layout = _Layout.of(steps, tuple(sorted(capture_sizes)))
        weights = np.ones(len(steps))
        found = robust_fit(layout.design(steps), worked_s(steps), weights)
        host = np.column_stack([np.ones(len(steps)), steps.requests])
        planning_s = np.maximum(steps.planned_s - steps.begun_s, 1e-9)
        host_s, host_request_s = robust_fit(host.astype(np.float64), planning_s, weights)
        return cls(
            **layout.parts(found),
            max_tokens=max_tokens,
            max_seqs=max_seqs,
            host_s=float(host_s),
            host_request_s=float(host_request_s),
            error=_held_out_error(layout, steps),
            known=Known.of(steps),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Which columns a fit has: the knots of both curves, and the prices."""

    decode: F8
    mixed: F8
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, steps: Steps, sizes: tuple[int, ...]) -> Self:
        counts, limit = padded(steps.tokens, sizes), max(sizes, default=0)
        prefills = steps.prefill_tokens > 0
        decode, mixed = (
            choose_knots(counts[kind] if kind.any() else counts, limit)
            for kind in (~prefills, prefills)
        )
        return cls(decode, mixed, sizes)

    def design(self, steps: Steps) -> F8:
        counts = padded(steps.tokens, self.sizes)
        mixed = steps.prefill_tokens > 0
        prices = [steps.decode_kv_tokens, steps.prefill_pairs, steps.requests * mixed]
        return np.column_stack(
            [
                ramps(counts, self.decode) * ~mixed[:, None],
                ramps(counts, self.mixed) * mixed[:, None],
                *prices,
            ]
        ).astype(np.float64)

    def parts(self, found: F8) -> dict[str, Any]:
        rises = np.split(found[:-_PRICES], [self.decode.size])
        decode, mixed = (
            Curve(knots, np.cumsum(rise), self.sizes)
            for knots, rise in zip((self.decode, self.mixed), rises, strict=True)
        )
        kv_token_s, pair_s, request_s = found[-_PRICES:].tolist()
        return {
            "decode": decode if decode.y.any() else mixed,
            "mixed": mixed if mixed.y.any() else decode,
            "kv_token_s": kv_token_s,
            "pair_s": pair_s,
            "request_s": request_s,
        }


def _held_out_error(layout: _Layout, steps: Steps) -> float:
    """Return the relative error of sums where each was predicted without its own steps."""
    times_s, design = worked_s(steps), layout.design(steps)
    bins = time_bins(times_s, ERROR_BIN_S)
    expected_s = np.zeros(len(steps))
    for fold in range(_FOLDS):
        out = bins % _FOLDS == fold
        if out.any() and not out.all():
            rest = ~out
            found = robust_fit(design[rest], times_s[rest], np.ones(int(rest.sum())))
            expected_s[out] = design[out] @ found
    off = np.log(np.maximum(sums(bins, expected_s), 1e-9) / sums(bins, times_s))
    return max(_LEAST_ERROR, 1.4826 * float(np.median(np.abs(off))))
