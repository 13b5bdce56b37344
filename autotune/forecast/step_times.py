"""How long any step takes, from steps that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from autotune.forecast.fitting import nonnegative, weighted_median
from autotune.forecast.step_fit import (
    Curve,
    Layout,
    bounded_pull,
    joined,
    made_steps,
    robust_fit,
    sums,
    time_bins,
)
from objectives.arrays import F8, I8, Bools
from objectives.steps import Steps

ERROR_BIN_S = 0.5
"""The time over which the sums are taken whose error is stated."""
CORRECTION_BIN_S = 0.25
"""The same of the sums by which steps that overlap are judged."""

_LEAST_ERROR = 0.01
_LEAST_S = 1e-7
_LEAST_BINS = 8
_LEAST_PAUSES = 20
_ONE_SIGMA = 0.683
_FOLDS = 4
_PRIOR_STEPS = 4.0
"""How many measured steps each knot of a model counts for when it is fitted anew."""
_ROUNDS = 6
_BIN_SIGMA = 0.03
_LEVEL_SIGMA = 0.03
_HOST_SIGMA_S = 5e-3
_HOST_REQUEST_SIGMA_S = 1e-4
"""By how much sums vary, and how far the corrections for overlap go where nothing shows them."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was measured; beyond it times are carried on. Both ends are 0 where nothing was.

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

    def joined(self, other: Self) -> Self:
        return type(self)(
            tokens=_hull(self.tokens, other.tokens),
            decode_requests=_hull(self.decode_requests, other.decode_requests),
            decode_context=max(self.decode_context, other.decode_context),
            prefill_context=max(self.prefill_context, other.prefill_context),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        tokens, requests = (tuple(data[name]) for name in ("tokens", "decode_requests"))
        return cls(**{**data, "tokens": tokens, "decode_requests": requests})


def _range(counts: I8) -> tuple[int, int]:
    return (int(counts.min()), int(counts.max())) if counts.size else (0, 0)


def _hull(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    if 0 in {one[1], other[1]}:
        return max(one, other)
    return min(one[0], other[0]), max(one[1], other[1])


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
        between_s: from a step's tokens to the planning of the next, with one in flight.
        between_request_s: the same for each request in the step.
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
    between_s: float
    between_request_s: float
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

        What the host does for a step is hidden as far as the step before was still running.

        Args:
            steps: of one recording, in order.
        """
        host_s = self.host_s + self.host_request_s * steps.requests
        hidden_s = np.minimum(host_s, _ahead_s(steps))
        return np.asarray(np.maximum(0.0, self.expected_s(steps) - hidden_s))

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
            "between_s": self.between_s,
            "between_request_s": self.between_request_s,
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
        and requests cost nothing where nothing shows their price. Of what the host does, only
        the planning shows here: ``host_s`` and ``host_request_s`` are too low until ``refined``.

        Args:
            steps: of known work; those of several recordings may follow each other.
            capture_sizes: token counts for which there are CUDA graphs.
            max_tokens: the most tokens of a step that will be asked for.
            max_seqs: the most decoding requests.

        Raises:
            ValueError: no step took any time.
        """
        steps = _timed(steps)
        if not len(steps):
            raise ValueError("no step to learn from")
        layout = Layout.of(steps, tuple(sorted(capture_sizes)))
        weights = np.ones(len(steps))
        host_s, host_request_s = _line(steps.requests, steps.planned_s - steps.begun_s)
        between_s, between_request_s = _between(steps) or (0.0, 0.0)
        return cls(
            **layout.fit(steps, weights),
            max_tokens=max_tokens,
            max_seqs=max_seqs,
            host_s=host_s,
            host_request_s=host_request_s,
            between_s=between_s,
            between_request_s=between_request_s,
            error=_held_out_error(layout, steps, weights),
            known=Known.of(steps),
        )

    def refined(self, replays: Sequence[Steps], *, overlapping: bool) -> StepTimes:
        """Return the model corrected by the steps of replays.

        Best asked of the model of a sweep with all replays so far, not of the last correction
        with the last replay. Without overlap single steps are right, and the curves are fitted
        anew; where the replays have nothing they keep their shape. With it sums over neighbours
        alone are right, and correct the share of the host and the level of either curve.

        The result is the model itself unless the corrected one predicts these sums better.

        Args:
            replays: each on its own clock.
            overlapping: whether steps were planned while others ran, as with async scheduling.
        """
        replays = [timed for each in replays if len(timed := _timed(each))]
        if not replays:
            return self
        correct = _corrected if overlapping else _refitted
        found = correct(self, replays)
        loss, before = (
            float(np.mean(np.abs(sum_errors(each, replays, overlapping=overlapping))))
            for each in (found, self)
        )
        return found if loss < before else self


def sum_errors(
    times: StepTimes,
    replays: Sequence[Steps],
    *,
    overlapping: bool,
    width_s: float = CORRECTION_BIN_S,
) -> F8:
    """Return the log of predicted over actual time, for sums over about ``width_s`` of work."""
    found = []
    for steps in replays:
        if overlapping:
            actual_s, expected_s = steps.period_s, times.overlapped_s(steps)
        else:
            actual_s, expected_s = _alone_s(steps), times.expected_s(steps)
        bins = time_bins(actual_s, width_s)
        expected_s = np.maximum(sums(bins, expected_s), _LEAST_S)
        found.append(np.log(expected_s / np.maximum(sums(bins, actual_s), _LEAST_S)))
    return np.concatenate(found)


def _alone_s(steps: Steps) -> F8:
    """Return what steps took that ran one at a time, from planning on."""
    return np.asarray(steps.done_s - steps.begun_s)


def _timed(steps: Steps) -> Steps:
    return steps.select((steps.tokens > 0) & (_alone_s(steps) > _LEAST_S))


def _ahead_s(steps: Steps) -> F8:
    """Return how long each step was planned before the one before it was done."""
    ahead_s = np.zeros(len(steps))
    ahead_s[1:] = np.maximum(0.0, steps.done_s[:-1] - steps.begun_s[1:])
    return ahead_s


def _line(requests: I8, times_s: F8) -> tuple[float, float]:
    """Return what there is anyway, and what comes to it for each request."""
    design = np.column_stack([np.ones(times_s.size), requests])
    anyway, each = robust_fit(
        design, np.maximum(times_s, _LEAST_S), np.ones(times_s.size)
    ).tolist()
    return anyway, each


def _between(steps: Steps) -> tuple[float, float] | None:
    """Return the pause after a step and what each request adds, None if too few steps show it.

    Where the next step decodes, there was work all the while, and the engine made the pause.
    """
    pause_s = steps.begun_s[1:] - steps.done_s[:-1]
    busy = (steps.decode_requests[1:] > 0) & (pause_s > 0)
    if busy.sum() < _LEAST_PAUSES:
        return None
    return _line(steps.requests[:-1][busy], pause_s[busy])


def _spread(errors: F8) -> float:
    return max(_LEAST_ERROR, float(np.quantile(np.abs(errors), _ONE_SIGMA)))


def _held_out_error(layout: Layout, steps: Steps, weights: F8) -> float:
    """Return the relative error of sums where each was predicted without its own steps.

    Steps whose weight is not 1 are only ever learnt from.
    """
    times_s, design = _alone_s(steps), layout.design(steps)
    measured = weights == 1
    bins = np.full(len(steps), -1)
    bins[measured] = time_bins(times_s[measured], ERROR_BIN_S)
    expected_s = np.zeros(len(steps))
    for fold in range(min(_FOLDS, int(bins.max()) + 1)):
        out = measured & (bins % _FOLDS == fold)
        rest = ~out if out.sum() < len(steps) else out
        expected_s[out] = design[out] @ robust_fit(design[rest], times_s[rest], weights[rest])
    expected = np.maximum(sums(bins[measured], expected_s[measured]), _LEAST_S)
    return _spread(np.log(expected / sums(bins[measured], times_s[measured])))


def _refitted(times: StepTimes, replays: Sequence[Steps]) -> StepTimes:
    """Return curves through steps of replays, and where there are none, of a model's shape."""
    steps = joined(replays)
    actual_s = _alone_s(steps)
    ratios = actual_s / np.maximum(times.expected_s(steps), _LEAST_S)
    mixed = steps.prefill_tokens > 0
    level = [
        weighted_median(ratios[kind], actual_s[kind]) if kind.any() else 1.0
        for kind in (~mixed, mixed)
    ]
    prior = _as_steps(times, *level)
    both = joined([prior, steps])
    weights = np.ones(len(both))
    weights[: len(prior)] = _PRIOR_STEPS
    layout = Layout.of(steps, times.mixed.sizes).joined(times.decode.x, times.mixed.x)
    between_s, between_request_s = _between(steps) or (times.between_s, times.between_request_s)
    return replace(
        times,
        **layout.fit(both, weights),
        between_s=between_s,
        between_request_s=between_request_s,
        error=_held_out_error(layout, both, weights),
        known=times.known.joined(Known.of(steps)),
    )


def _as_steps(times: StepTimes, decode_level: float, mixed_level: float) -> Steps:
    """Return steps at the knots of a model, with the shortest and the longest known contexts."""
    decode, mixed = times.decode.x, times.mixed.x
    nothing = np.zeros(2 * (decode.size + mixed.size))
    decodes, prefill, requests, kv, pairs = (nothing.copy() for _ in range(5))
    near, far, fresh, chunk = np.split(
        np.arange(nothing.size), np.cumsum([decode.size, decode.size, mixed.size])
    )
    decodes[near] = decodes[far] = requests[near] = requests[far] = decode
    kv[far] = decode * times.known.decode_context
    prefill[fresh] = prefill[chunk] = mixed
    requests[fresh], requests[chunk] = 1, np.ceil(mixed / 16)
    pairs[fresh] = mixed * (mixed + 1) / 2
    pairs[chunk] = np.maximum(pairs[fresh], mixed * times.known.prefill_context)
    steps = made_steps(
        prefill=prefill,
        decodes=decodes,
        requests=requests,
        decode_kv_tokens=kv,
        prefill_pairs=pairs,
    )
    level = np.where(steps.prefill_tokens > 0, mixed_level, decode_level)
    return _timed(replace(steps, done_s=times.expected_s(steps) * level))


def _corrected(times: StepTimes, replays: Sequence[Steps]) -> StepTimes:
    """Return a model with the share of the host and the levels that fit sums over neighbours."""
    steps = joined(replays)
    mixed = steps.prefill_tokens > 0
    tables_s = np.where(mixed, times.mixed(steps.tokens), times.decode(steps.decode_requests))
    rest_s = times.expected_s(steps) - tables_s
    ahead_s = np.concatenate([_ahead_s(each) for each in replays])
    bins = _bins(replays)
    actual_s = sums(bins, np.concatenate([each.period_s for each in replays]))

    found = np.array([1.0, 1.0, times.host_s, times.host_request_s])
    sigmas = [_LEVEL_SIGMA, _LEVEL_SIGMA, _HOST_SIGMA_S, _HOST_REQUEST_SIGMA_S]
    prior = np.diag(_BIN_SIGMA / np.array(sigmas))
    target = prior @ found
    pull = np.ones(actual_s.size)
    for _ in range(_ROUNDS):
        hidden = found[2] + found[3] * steps.requests <= ahead_s
        columns = [tables_s * ~mixed, tables_s * mixed, -1.0 * hidden, -steps.requests * hidden]
        work = np.column_stack([sums(bins, column) for column in columns])
        fixed_s = sums(bins, rest_s - ahead_s * ~hidden)
        rows = np.vstack([work * (pull / actual_s)[:, None], prior])
        aims = np.concatenate([pull * (1 - fixed_s / actual_s), target])
        found = nonnegative(rows, aims)
        off = np.abs((work @ found + fixed_s) / actual_s - 1)
        pull = np.sqrt(bounded_pull(off))
    decode_level, mixed_level, host_s, host_request_s = found.tolist()
    result = replace(
        times,
        decode=times.decode.scaled(decode_level),
        mixed=times.mixed.scaled(mixed_level),
        host_s=host_s,
        host_request_s=host_request_s,
    )
    errors = sum_errors(result, replays, overlapping=True, width_s=ERROR_BIN_S)
    return replace(result, error=_spread(errors)) if errors.size >= _LEAST_BINS else result


def _bins(replays: Sequence[Steps]) -> I8:
    found, first = [], 0
    for steps in replays:
        bins = time_bins(steps.period_s, CORRECTION_BIN_S) + first
        first = int(bins[-1]) + 1
        found.append(bins)
    return np.concatenate(found)
