"""The frozen value that a replay yields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from objectives.arrays import F8, I8
from objectives.bootstrap import resample_weights
from objectives.censoring import unfinished
from objectives.classes import LengthClass, class_mask
from objectives.errors import ObjectiveError
from objectives.goodput import request_keeps
from objectives.latency import e2e_ms, itl_ms, itl_owner, send_lag_ms, tpot_ms, ttft_ms
from objectives.limits import METRICS, Budget, check_classes, metric_key
from objectives.samples import RequestSamples
from objectives.statistics import AGGREGATES, Interval, aggregate, intervals
from objectives.utilization import (
    Work,
    busy_s,
    prefix_hit_rate,
    tokens_per_busy_s,
    useful_tokens,
    utilization,
)

# These get intervals, and any that the budget names.
_BOUNDED = ("mean", "p95", "p99")
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one replay says about one candidate.

    Attributes:
        metrics: every aggregate of every metric in ms (``ttft_p95``), per class with ``@name``
            (``itl_p99@short``), and ``tokens_per_busy_s``, ``goodput``, ``request_throughput``,
            ``output_throughput``, ``total_token_throughput`` per second, and ``utilization``
            and ``prefix_hit_rate`` as ratios. None: there was nothing to measure, or nothing to
            measure it by; inf: lost requests weigh that much.
        intervals: bounds of mean, p95, p99 and what the budget names, under the same keys.
        requests: number of requests of the window, lost ones included.
        failed_requests: those that failed or never had a token.
        window_s: the duration that the rates are per.
        busy_s: seconds with at least one request unfinished.
        useful_tokens: tokens that had to be computed.
        send_lag_p99_ms: how late the client sent; inf if it sent nothing.
    """

    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    requests: int
    failed_requests: int
    window_s: float
    busy_s: float
    useful_tokens: int
    send_lag_p99_ms: float


def measure(
    samples: RequestSamples,
    *,
    classes: Sequence[LengthClass],
    budget: Budget,
    duration_s: float | None = None,
    work: Work | None = None,
    best_flops_per_s: float | None = None,
) -> Measurement:
    """Condense one replay.

    Args:
        samples: one replay, in arrival order.
        classes: metrics are also given for each of them.
        budget: its absolute lines decide goodput; all of its lines, the relative ones too,
            decide which further intervals are computed.
        duration_s: what rates are per, as the benchmark duration of ``vllm bench serve``;
            by default from the first scheduled send to the last token.
        work: what the model computes; without it there is no ``utilization``.
        best_flops_per_s: what its useful part is measured by; without it neither.

    Raises:
        ObjectiveError: no requests, unfinished ones, a duration or a best that is not positive,
            or a limit on a class that is not among ``classes``.
    """
    if not len(samples):
        raise ObjectiveError("a replay without requests cannot be measured.")
    if unfinished(samples).any():
        raise ObjectiveError("a replay that was cut short cannot be measured as if it were whole.")
    check_classes(budget, classes)
    window_s = _duration_s(samples) if duration_s is None else duration_s
    if not window_s > 0:
        raise ObjectiveError(f"the duration of a replay must be positive, not {window_s:g} s.")
    metrics: dict[str, float | None] = {}
    bounds: dict[str, Interval] = {}
    for class_name, part in _parts(samples, classes):
        _add_latencies(part, class_name, budget, metrics, bounds)
    metrics["tokens_per_busy_s"] = tokens_per_busy_s(samples)
    metrics["prefix_hit_rate"] = prefix_hit_rate(samples)
    metrics["utilization"] = None
    if work is not None and best_flops_per_s is not None:
        metrics["utilization"] = utilization(samples, work, best_flops_per_s)
    metrics.update(_rates(samples, classes, budget, window_s))
    send_lag = aggregate(send_lag_ms(samples), "p99")
    return Measurement(
        metrics=metrics,
        intervals=bounds,
        requests=len(samples),
        failed_requests=int(samples.lost.sum()),
        window_s=window_s,
        busy_s=busy_s(samples),
        useful_tokens=useful_tokens(samples),
        send_lag_p99_ms=math.inf if send_lag is None else send_lag,
    )


def point_values(
    samples: RequestSamples,
    keys: Sequence[str],
    *,
    classes: Sequence[LengthClass],
    work: Work | None = None,
    best_flops_per_s: float | None = None,
) -> dict[str, float | None]:
    """Return some of the metrics that ``measure`` gives, without intervals: where speed counts.

    Args:
        samples: one replay, in arrival order.
        keys: of latencies, and of ``tokens_per_busy_s`` and ``utilization``.
        classes: that a key may name.
        work: see ``measure``.
        best_flops_per_s: see ``measure``.
    """
    parts = dict(_parts(samples, classes))
    found: dict[str, float | None] = {}
    for key in keys:
        name, _, class_name = key.partition("@")
        metric, _, kind = name.partition("_")
        if metric in METRICS:
            values, _ = _values(parts[class_name or None], metric)
            found[key] = aggregate(values, kind)
    if "tokens_per_busy_s" in keys:
        found["tokens_per_busy_s"] = tokens_per_busy_s(samples)
    if "utilization" in keys and work is not None and best_flops_per_s is not None:
        found["utilization"] = utilization(samples, work, best_flops_per_s)
    return found


def _parts(
    samples: RequestSamples, classes: Sequence[LengthClass]
) -> Iterator[tuple[str | None, RequestSamples]]:
    yield None, samples
    for each in classes:
        yield each.name, samples.select(class_mask(samples.prompt_tokens, each))


def _add_latencies(
    samples: RequestSamples,
    class_name: str | None,
    budget: Budget,
    metrics: dict[str, float | None],
    bounds: dict[str, Interval],
) -> None:
    """Add the aggregates and intervals of all metrics over ``samples``."""
    weights = resample_weights(len(samples), resamples=_RESAMPLES, seed=0)
    for metric in METRICS:
        values, owner = _values(samples, metric)
        metrics.update(
            {metric_key(metric, name, class_name): aggregate(values, name) for name in AGGREGATES}
        )
        named = {
            limit.aggregate
            for limit in budget.limits
            if (limit.metric, limit.class_name) == (metric, class_name)
        }
        wanted = [name for name in AGGREGATES if name in _BOUNDED or name in named]
        for name, found in intervals(values, owner, weights, wanted).items():
            bounds[metric_key(metric, name, class_name)] = found


def _values(samples: RequestSamples, metric: str) -> tuple[F8, I8]:
    """Values of a metric in ms and the row that each belongs to."""
    if metric == "itl":
        return itl_ms(samples), itl_owner(samples)
    by_request = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms}[metric]
    return by_request(samples), np.arange(len(samples))


def _rates(
    samples: RequestSamples, classes: Sequence[LengthClass], budget: Budget, window_s: float
) -> dict[str, float | None]:
    """Throughput as ``vllm bench serve`` defines it: what completed, over the duration."""
    completed = ~samples.lost
    output = int(samples.output_tokens[completed].sum())
    prompt = int(samples.prompt_tokens[completed].sum())
    kept = int(request_keeps(budget, samples, classes).sum())
    return {
        "goodput": kept / window_s if budget.absolute else None,
        "request_throughput": int(completed.sum()) / window_s,
        "output_throughput": output / window_s,
        "total_token_throughput": (prompt + output) / window_s,
    }


def _duration_s(samples: RequestSamples) -> float:
    ends = np.concatenate([samples.scheduled_s, samples.sent_s, samples.last_token_s])
    return float(np.nanmax(ends) - np.nanmin(samples.scheduled_s))
