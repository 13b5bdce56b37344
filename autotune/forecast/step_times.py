"""How long any step takes, from steps that were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from autotune.forecast.fitting import (
    bounded_pull,
    nonnegative,
    robust_fit,
    sums,
    weighted_median,
)
from autotune.forecast.recordings import LEAST_S, Recorded, ahead_s
from autotune.forecast.step_fit import Curve, Layout, joined, made_steps
from objectives.arrays import F8, I8
from objectives.steps import Steps

ERROR_BIN_S = 0.5
"""The time over which the sums are taken whose error is stated."""
CORRECTION_BIN_S = 0.25
"""The same of the sums by which steps that overlap are judged, and corrections of a model."""

_LEAST_ERROR = 0.01
_MOST_ERROR = 1.0
"""Of predictions, and of a model of which nothing can be held out."""
_LEAST_SUMS = 8
_LEAST_PAUSES = 20
_ONE_SIGMA = 0.683
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
        error: relative standard error of sums over about 0.5 s of work that were held out: blocks
            of steps, predicted by a model made from all others. ``fit`` holds out quarters of the
            time, then sizes, and states the larger error; ``refined`` whole replays, of a single
            one quarters. 1 % at least; 100 % at most, and where nothing can be held out. It says
            nothing of work beyond ``known``, and from a single replay it is that of work as was
            in it: six on an H200 state 1.7 to 3.4 %, and predict the others to 2.2 to 3.2 %.
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
        return self._periods_s(steps, ahead_s(steps))

    def recorded_s(self, recorded: Recorded) -> F8:
        """Return what each step of recordings takes, as its ``actual_s`` is to be read."""
        return self._periods_s(recorded.steps, recorded.ahead_s)

    def _periods_s(self, steps: Steps, planned_ahead_s: F8) -> F8:
        host_s = self.host_s + self.host_request_s * steps.requests
        hidden_s = np.minimum(host_s, planned_ahead_s)
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
        recorded = Recorded.of([steps], overlapping=False)
        steps = recorded.steps
        if not len(steps):
            raise ValueError("no step to learn from")
        host_s, host_request_s = _line(steps.requests, steps.planned_s - steps.begun_s)
        between_s, between_request_s = _between(steps) or (0.0, 0.0)
        times = cls(
            **_curves(steps, tuple(sorted(capture_sizes))),
            max_tokens=max_tokens,
            max_seqs=max_seqs,
            host_s=host_s,
            host_request_s=host_request_s,
            between_s=between_s,
            between_request_s=between_request_s,
            error=_MOST_ERROR,
            known=Known.of(steps),
        )
        return replace(times, error=_fit_error(times, recorded))

    def refined(self, replays: Sequence[Steps], *, overlapping: bool) -> StepTimes:
        """Return the model corrected by the steps of replays.

        Best asked of the model of a sweep with all replays so far, not of the last correction
        with the last replay. Without overlap single steps are right, and the curves are fitted
        anew; where the replays have nothing they keep their shape. With it sums over neighbours
        alone are right, and correct the share of the host and the level of either curve.

        A correction that is made from the other replays, of a single one from its other quarters,
        has to predict these sums better. If it does not, the result keeps the model's times, and
        states no less of an error than they show: what was learnt from is always predicted
        better, even if it was noise.

        Args:
            replays: each on its own clock.
            overlapping: whether steps were planned while others ran, as with async scheduling.
        """
        recorded = Recorded.of(replays, overlapping=overlapping) if replays else None
        if recorded is None or not len(recorded):
            return self
        correct = _corrected if overlapping else _refitted
        held_out_s = _held_out_s(recorded, recorded.time_folds(), lambda rest: correct(self, rest))
        own_s = self.recorded_s(recorded)
        if held_out_s is None or _loss(recorded, own_s) <= _loss(recorded, held_out_s):
            return replace(self, error=max(self.error, _spread(recorded, own_s)))
        error = _spread(recorded, held_out_s)
        if recorded.bins(ERROR_BIN_S)[-1] + 1 < _LEAST_SUMS:
            error = max(self.error, error)
        return replace(correct(self, recorded), error=error)


def sum_errors(
    times: StepTimes,
    replays: Sequence[Steps],
    *,
    overlapping: bool,
    width_s: float = CORRECTION_BIN_S,
) -> F8:
    """Return the log of predicted over actual time, for sums over about ``width_s`` of work."""
    recorded = Recorded.of(replays, overlapping=overlapping)
    return recorded.errors(times.recorded_s(recorded), width_s)


def _line(requests: I8, times_s: F8) -> tuple[float, float]:
    """Return what there is anyway, and what comes to it for each request."""
    design = np.column_stack([np.ones(times_s.size), requests])
    anyway, each = robust_fit(design, np.maximum(times_s, LEAST_S), np.ones(times_s.size)).tolist()
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


def _curves(steps: Steps, capture_sizes: tuple[int, ...]) -> dict[str, Any]:
    return Layout.of(steps, capture_sizes).fit(steps, np.ones(len(steps)))


def _held_out_s(
    recorded: Recorded, folds: I8, learn: Callable[[Recorded], StepTimes]
) -> F8 | None:
    """Return what each step takes by a model made from the steps of all folds but its own.

    0 for the steps of fold -1, which are only ever learnt from; None where nothing else is left.
    """
    expected_s = np.zeros(len(recorded))
    for fold in np.unique(folds[folds >= 0]):
        out = folds == fold
        if out.all():
            return None
        expected_s[out] = learn(recorded.select(~out)).recorded_s(recorded.select(out))
    return expected_s


def _loss(recorded: Recorded, expected_s: F8) -> float:
    return float(np.mean(np.abs(recorded.errors(expected_s, CORRECTION_BIN_S))))


def _spread(recorded: Recorded, expected_s: F8) -> float:
    errors = np.abs(recorded.errors(expected_s, ERROR_BIN_S))
    return min(_MOST_ERROR, max(_LEAST_ERROR, float(np.quantile(errors, _ONE_SIGMA))))


def _fit_error(times: StepTimes, recorded: Recorded) -> float:
    """Return the error of a fit, of work that was measured at another time or at other sizes.

    Of a sweep, where each size comes again and again, a quarter of the time shows too little; of
    replays with full steps, whose size is the largest, the sizes between.
    """
    sizes = times.mixed.sizes
    found = []
    for folds in (recorded.time_folds(), recorded.size_folds(sizes)):
        expected_s = _held_out_s(
            recorded, folds, lambda rest: replace(times, **_curves(rest.steps, sizes))
        )
        if expected_s is not None and (some := folds >= 0).any():
            found.append(_spread(recorded.select(some), expected_s[some]))
    return max(found, default=_MOST_ERROR)


def _refitted(times: StepTimes, recorded: Recorded) -> StepTimes:
    """Return curves through recorded steps, and where there are none, of a model's shape."""
    steps, actual_s = recorded.steps, recorded.actual_s
    ratios = actual_s / np.maximum(times.expected_s(steps), LEAST_S)
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
    timed = replace(steps, done_s=times.expected_s(steps) * level)
    return Recorded.of([timed], overlapping=False).steps


def _corrected(times: StepTimes, recorded: Recorded) -> StepTimes:
    """Return a model with the share of the host and the levels that fit sums over neighbours."""
    steps = recorded.steps
    mixed = steps.prefill_tokens > 0
    tables_s = np.where(mixed, times.mixed(steps.tokens), times.decode(steps.decode_requests))
    rest_s = times.expected_s(steps) - tables_s
    bins = recorded.bins(CORRECTION_BIN_S)
    actual_s = np.maximum(sums(bins, recorded.actual_s), LEAST_S)

    found = np.array([1.0, 1.0, times.host_s, times.host_request_s])
    sigmas = [_LEVEL_SIGMA, _LEVEL_SIGMA, _HOST_SIGMA_S, _HOST_REQUEST_SIGMA_S]
    prior = (_BIN_SIGMA / np.array(sigmas)) ** 2
    aims = prior * found
    pull = np.ones(actual_s.size)
    for _ in range(_ROUNDS):
        hidden = found[2] + found[3] * steps.requests <= recorded.ahead_s
        columns = [tables_s * ~mixed, tables_s * mixed, -1.0 * hidden, -steps.requests * hidden]
        work = np.column_stack([sums(bins, column) for column in columns])
        fixed_s = sums(bins, rest_s - recorded.ahead_s * ~hidden)
        relative = work / actual_s[:, None]
        weighted = relative * pull[:, None]
        gram = weighted.T @ relative + np.diag(prior)
        found = nonnegative(gram, weighted.T @ (1 - fixed_s / actual_s) + aims)
        off = np.abs((work @ found + fixed_s) / actual_s - 1)
        pull = bounded_pull(off)
    decode_level, mixed_level, host_s, host_request_s = found.tolist()
    return replace(
        times,
        decode=times.decode.scaled(decode_level),
        mixed=times.mixed.scaled(mixed_level),
        host_s=host_s,
        host_request_s=host_request_s,
    )
