"""A trace as plain text: at most 80 columns, no colour."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from autotune.traffic.inspect import ClassStats, LengthStats, TraceSummary, chunking_sentence
from autotune.traffic.model import Trace
from objectives.arrays import F8, I8

WIDTH = 80
_LEVELS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = "▏▎▍▌▋▊▉█"
_MOST_CELLS = 72
_BAR_WIDTH = 36
# Steps of an arrival line that people read at a glance.
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


def picture(trace: Trace, summary: TraceSummary) -> str:
    """Return figures, arrivals over time and both distributions of length as text."""
    cuts = [each.high for each in summary.classes if each.high is not None]
    parts = [
        _figures(trace, summary),
        _arrivals(trace),
        _histogram("Prompt tokens", trace.input_lengths, cuts=cuts),
        _histogram("Output tokens", trace.output_lengths),
        _classes(summary.classes),
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)


def sparkline(values: F8 | I8) -> str:
    """Return one character a value: blank for zero, else an eighth to a full block."""
    top = float(np.max(values))
    if top == 0:
        return " " * len(values)
    heights = np.ceil(np.asarray(values) / top * 8).astype(int)
    return "".join(_LEVELS[height] for height in heights)


def bar(share: float, width: int) -> str:
    """Return a bar of ``share`` of ``width`` cells; whatever is above zero can be seen."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest - 1] if rest else "")


def _figures(trace: Trace, summary: TraceSummary) -> list[str]:
    arrivals = f"peak {summary.peak_rate_per_s:g} in one second"
    if summary.rate_per_s is not None:
        arrivals = f"{summary.rate_per_s:.2f} requests/s, {arrivals}"
    if summary.simultaneous:
        arrivals += f", {summary.simultaneous} at the very time of the one before"
    rows = {
        "Source": trace.meta.source,
        "Requests": f"{summary.requests} in {summary.duration_s:.1f} s",
        "Arrivals": arrivals,
        "Burstiness": _burstiness(summary),
        "Prompts": _lengths(summary.prompt),
        "Outputs": _lengths(summary.output),
        "Longest": f"{summary.longest_request} tokens with its output: max_model_len "
        f"{summary.recommended_max_model_len} is enough",
        "Prefixes": _prefixes(summary),
        "Chunking": chunking_sentence(summary),
    }
    return [line for name, text in rows.items() for line in _wrapped(name, text)]


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12
    ) or [name]


def _burstiness(summary: TraceSummary) -> str:
    if summary.gap_cv is None:
        return "too few requests to tell"
    text = f"gaps vary by {summary.gap_cv:.2f} of their mean"
    if summary.dispersion_index is not None:
        text += f", dispersion per second {summary.dispersion_index:.2f}"
    return text + " (Poisson: 1)"


def _lengths(stats: LengthStats) -> str:
    return (
        f"p50 {stats.p50:.0f}, p95 {stats.p95:.0f}, p99 {stats.p99:.0f}, "
        f"max {stats.max}, total {stats.total} tokens"
    )


def _prefixes(summary: TraceSummary) -> str:
    if summary.block_reuse_share is None:
        return "unknown: every prompt is replayed as if it shared nothing"
    return f"a prefix cache can serve at most {summary.block_reuse_share:.1%} of prompt blocks"


def _arrivals(trace: Trace) -> list[str]:
    span_s = max(trace.duration_s, _STEPS_S[0])
    step_s = next((s for s in _STEPS_S if span_s / s < _MOST_CELLS), span_s / (_MOST_CELLS - 1))
    counts = np.bincount((trace.timestamps_s / step_s).astype(np.int64))
    end = f"{counts.size * step_s:g} s"
    return [
        f"Arrivals in each {step_s:g} s, at most {counts.max()}",
        f"  |{sparkline(counts)}|",
        f"   0 s{end:>{max(len(end) + 1, counts.size - 3)}}",
    ]


def _histogram(title: str, lengths: I8, *, cuts: Sequence[int] = ()) -> list[str]:
    """One bar for each doubling of length; a class cut is marked in the bar that holds it."""
    octaves = np.array([int(length).bit_length() - 1 for length in lengths])
    lines = [f"{title} (each row doubles)"]
    counts = np.bincount(octaves)
    for octave in range(octaves.min(), octaves.max() + 1):
        low, high = 2**octave, 2 ** (octave + 1) - 1
        share = counts[octave] / lengths.size
        line = (
            f"{f'{low}-{high}' if high > low else f'{low}':>15} {counts[octave]:>7} {share:>6.1%} "
            f"{bar(counts[octave] / counts.max(), _BAR_WIDTH)}"
        )
        marks = [f"{cut}" for cut in cuts if low <= cut <= high]
        if marks:
            line = f"{line:<{WIDTH - 13}}< cut {' '.join(marks)}"
        lines.append(line)
    return lines


def _classes(classes: Sequence[ClassStats]) -> list[str]:
    if not classes:
        return []
    lines = ["Classes of prompt length"]
    for each in classes:
        span = f"{each.low}-{'' if each.high is None else each.high}"
        line = f"  {each.name:<12} {span:<13} {each.requests:>7} requests {each.share:>6.1%}"
        if each.prompt_p50 is not None:
            line += f"  p50 {each.prompt_p50:.0f} in, {each.output_p50:.0f} out"
        lines.append(line)
    return lines
