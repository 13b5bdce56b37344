"""A trace as plain text: at most 80 columns, fewer on a narrow screen, no colour."""

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
_NARROWEST = 40
_BESIDE_ARRIVALS = 8
_BESIDE_BAR = 44
_LEAST_BAR = 4
_BEHIND_BAR = 13
# Steps of an arrival line that people read at a glance.
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


def picture(trace: Trace, summary: TraceSummary, *, width: int = WIDTH) -> str:
    """Return figures, arrivals over time and both distributions of length as text.

    Args:
        trace: to be shown.
        summary: of it.
        width: of the screen, in columns; more than ``WIDTH`` and fewer than 40 are not used.
    """
    width = min(max(width, _NARROWEST), WIDTH)
    cuts = [each.high for each in summary.classes if each.high is not None]
    parts = [
        _figures(trace, summary, width),
        _arrivals(trace, width),
        _histogram("Prompt tokens", trace.input_lengths, width, cuts=cuts),
        _histogram("Output tokens", trace.output_lengths, width),
        _classes(summary.classes, width),
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


def _figures(trace: Trace, summary: TraceSummary, width: int) -> list[str]:
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
    return [line for name, text in rows.items() for line in _wrapped(name, text, width)]


def _wrapped(name: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=f"{name:<12}", subsequent_indent=" " * 12
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


def _arrivals(trace: Trace, width: int) -> list[str]:
    span_s, most = max(trace.duration_s, _STEPS_S[0]), width - _BESIDE_ARRIVALS
    step_s = next((s for s in _STEPS_S if span_s / s < most), span_s / (most - 1))
    counts = np.bincount((trace.timestamps_s / step_s).astype(np.int64))
    end = f"{counts.size * step_s:g} s"
    return [
        f"Arrivals in each {step_s:g} s, at most {counts.max()}",
        f"  |{sparkline(counts)}|",
        f"   0 s{end:>{max(len(end) + 1, counts.size - 3)}}",
    ]


def _histogram(title: str, lengths: I8, width: int, *, cuts: Sequence[int] = ()) -> list[str]:
    """One bar for each doubling of length; a class cut is marked in the bar that holds it."""
    octaves = np.array([int(length).bit_length() - 1 for length in lengths])
    lines = [f"{title} (each row doubles)"]
    counts, longest = np.bincount(octaves), max(_LEAST_BAR, width - _BESIDE_BAR)
    for octave in range(octaves.min(), octaves.max() + 1):
        low, high = 2**octave, 2 ** (octave + 1) - 1
        share = counts[octave] / lengths.size
        line = (
            f"{f'{low}-{high}' if high > low else f'{low}':>15} {counts[octave]:>7} {share:>6.1%} "
            f"{bar(counts[octave] / counts.max(), longest)}"
        )
        marks = [f"{cut}" for cut in cuts if low <= cut <= high]
        lines += _marked(line, f"< cut {' '.join(marks)}", width) if marks else [line]
    return lines


def _marked(line: str, mark: str, width: int) -> list[str]:
    """Return a line with a mark at its end, or below it where there is no room."""
    whole = f"{line:<{width - _BEHIND_BAR}}{mark}"
    return [whole] if len(whole) <= width else [line, f"{mark:>{width}}"]


def _classes(classes: Sequence[ClassStats], width: int) -> list[str]:
    if not classes:
        return []
    lines = ["Classes of prompt length"]
    for each in classes:
        span = f"{each.low}-{'' if each.high is None else each.high}"
        line = f"  {each.name:<12} {span:<13} {each.requests:>7} requests {each.share:>6.1%}"
        if each.prompt_p50 is not None:
            line += f"  p50 {each.prompt_p50:.0f} in, {each.output_p50:.0f} out"
        lines += textwrap.wrap(line, width, subsequent_indent="    ")
    return lines
