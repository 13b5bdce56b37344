"""What a trace says about the limits that are to be tuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.traffic.model import Trace
from objectives.arrays import I8
from objectives.classes import LengthClass, class_mask, default_classes

MODEL_LEN_MULTIPLE = 64
DEFAULT_BUDGET_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStats:
    """Token counts over requests; percentiles are interpolated linearly."""

    min: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStats:
    """One class of prompt length; lengths are None if it holds no request."""

    name: str
    low: int
    high: int | None
    requests: int
    share: float
    prompt_p50: float | None
    output_p50: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """A trace in figures.

    Attributes:
        requests: how many.
        duration_s: from time zero to the last arrival.
        rate_per_s: requests per second, None if all came at time zero.
        simultaneous: requests that came at the very time of the one before.
        peak_rate_per_s: most arrivals in one second (of the grid of whole seconds).
        dispersion_index: variance over mean of the arrivals in whole seconds; 1 is Poisson,
            more is burstier. None below two whole seconds.
        gap_cv: standard deviation over mean of the gaps; 1 is Poisson. None below two gaps.
        prompt: lengths of prompts.
        output: lengths of outputs.
        longest_request: most prompt and output tokens of one request.
        recommended_max_model_len: that, rounded up to a multiple of 64.
        budget_tokens: the step budget that prompts are compared with.
        share_over_budget: share of prompts longer than it.
        block_reuse_share: share of prompt blocks at the start of prompts that came before,
            which bounds the hit rate of a prefix cache. None if prefixes are unknown.
        classes: of prompt length.
    """

    requests: int
    duration_s: float
    rate_per_s: float | None
    simultaneous: int
    peak_rate_per_s: float
    dispersion_index: float | None
    gap_cv: float | None
    prompt: LengthStats
    output: LengthStats
    longest_request: int
    recommended_max_model_len: int
    budget_tokens: int
    share_over_budget: float
    block_reuse_share: float | None
    classes: tuple[ClassStats, ...]


def describe(
    trace: Trace,
    *,
    budget_tokens: int = DEFAULT_BUDGET_TOKENS,
    classes: Sequence[LengthClass] | None = None,
) -> TraceSummary:
    """Summarise a trace.

    Args:
        trace: the traffic.
        budget_tokens: a value of ``max_num_batched_tokens`` to compare prompts with.
        classes: of prompt length; None looks for one cut in the lengths.
    """
    chosen = default_classes(trace.input_lengths) if classes is None else classes
    seconds, counts = busy_seconds(trace)
    duration_s = trace.duration_s
    return TraceSummary(
        requests=len(trace.requests),
        duration_s=duration_s,
        rate_per_s=len(trace.requests) / duration_s if duration_s > 0 else None,
        simultaneous=int(np.sum(np.diff(trace.timestamps_s) == 0)),
        peak_rate_per_s=float(counts.max()),
        dispersion_index=_dispersion_index(seconds, counts, int(duration_s)),
        gap_cv=_gap_cv(trace),
        prompt=_length_stats(trace.input_lengths),
        output=_length_stats(trace.output_lengths),
        longest_request=trace.longest_request,
        recommended_max_model_len=enough_model_len(trace.longest_request),
        budget_tokens=budget_tokens,
        share_over_budget=float(np.mean(trace.input_lengths > budget_tokens)),
        block_reuse_share=_block_reuse(trace) if trace.meta.prefixes_known else None,
        classes=tuple(_class_stats(trace, each) for each in chosen),
    )


def enough_model_len(longest_request: int, *, model_allows: int | None = None) -> int:
    """Return a ``max_model_len`` that holds the longest request, rounded up where it may be.

    Args:
        longest_request: in tokens, prompt and output.
        model_allows: the model's own limit, None if unknown; below the request it has no say.
    """
    rounded = -(-longest_request // MODEL_LEN_MULTIPLE) * MODEL_LEN_MULTIPLE
    if model_allows is None or model_allows < longest_request:
        return rounded
    return min(rounded, model_allows)


def chunking_sentence(summary: TraceSummary) -> str:
    """Say whether chunked prefill is in effect at the summary's budget."""
    budget, share = summary.budget_tokens, summary.share_over_budget
    if share == 0:
        return (
            f"No prompt is longer than {budget} tokens: chunked prefill splits a prompt only "
            "where several queue, and hardly matters at this budget."
        )
    return (
        f"{share:.1%} of prompts are longer than {budget} tokens: they take several steps, so "
        "chunked prefill is in effect at this budget."
    )


def busy_seconds(trace: Trace) -> tuple[I8, I8]:
    """Return the seconds from time zero in which requests came, and how many in each.

    Seconds without a request are not listed: a trace may have a year of them.
    """
    seconds, counts = np.unique(trace.timestamps_s.astype(np.int64), return_counts=True)
    return seconds, counts.astype(np.int64)


def dispersion_index(trace: Trace, *, window_s: float = 1.0) -> float | None:
    """Return variance over mean of the arrivals in whole windows, counted from time zero.

    1 is Poisson, more is burstier. None below two whole windows, or without a request in them.
    """
    windows, counts = np.unique(
        (trace.timestamps_s / window_s).astype(np.int64), return_counts=True
    )
    return _dispersion_index(windows, counts, int(trace.duration_s / window_s))


def _dispersion_index(windows: I8, counts: I8, whole: int) -> float | None:
    """Return variance over mean of the counts in ``whole`` windows, most of them perhaps 0."""
    inside = counts[windows < whole]
    if whole < 2 or not inside.size:
        return None
    mean = inside.sum() / whole
    squares = np.sum((inside - mean) ** 2) + (whole - inside.size) * mean**2
    return float(squares / (whole - 1) / mean)


def _gap_cv(trace: Trace) -> float | None:
    gaps_s = np.diff(trace.timestamps_s)
    if gaps_s.size < 2 or not gaps_s.any():
        return None
    return float(gaps_s.std(ddof=1) / gaps_s.mean())


def _length_stats(lengths: I8) -> LengthStats:
    p50, p90, p95, p99 = np.percentile(lengths, [50, 90, 95, 99]).tolist()
    return LengthStats(
        min=int(lengths.min()),
        mean=float(lengths.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=int(lengths.max()),
        total=int(lengths.sum()),
    )


def _block_reuse(trace: Trace) -> float:
    """A prefix cache serves only an unbroken run of blocks from the start of a prompt."""
    seen: set[int] = set()
    reused = 0
    total = 0
    for request in trace.requests:
        for hash_id in request.hash_ids:
            if hash_id not in seen:
                break
            reused += 1
        seen.update(request.hash_ids)
        total += len(request.hash_ids)
    return reused / total


def _class_stats(trace: Trace, length_class: LengthClass) -> ClassStats:
    inside = class_mask(trace.input_lengths, length_class)
    requests = int(inside.sum())
    return ClassStats(
        name=length_class.name,
        low=length_class.low,
        high=length_class.high,
        requests=requests,
        share=requests / len(trace.requests),
        prompt_p50=float(np.median(trace.input_lengths[inside])) if requests else None,
        output_p50=float(np.median(trace.output_lengths[inside])) if requests else None,
    )
