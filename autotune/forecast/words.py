"""A calibration as plain text: at most 80 columns, no colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.forecast.calibration import Batch, Calibration, Point
from objectives.arrays import F8

WIDTH = 80
_PLOT_WIDTH = 66
_PLOT_HEIGHT = 16


def table_lines(calibration: Calibration) -> list[str]:
    """Return the step times, edges and prices, a line each."""
    sections = (
        _point_lines(calibration),
        _batch_lines(calibration),
        _edge_lines(calibration),
        _price_lines(calibration),
    )
    lines: list[str] = []
    for section in sections:
        lines += ["", *section] if lines and section else section
    return lines


def _point_lines(calibration: Calibration) -> list[str]:
    if not calibration.points:
        return ["No prefill step was measured."]
    heads = {edge.from_tokens: edge.kind for edge in calibration.edges}
    shown = _notable(calibration.points, heads)
    lines = [f"{'Tokens':>8} {'ms':>9} {'spread':>8} {'us/token':>9} {'repeats':>8}"]
    for point in shown:
        line = (
            f"{point.tokens:>8} {point.median_ms:>9.2f} {_spread(point):>8} "
            f"{point.median_ms / point.tokens * 1e3:>9.2f} {point.repeats:>8}"
        )
        kind = heads.get(point.tokens)
        lines.append(line if kind is None else f"{line}  < last before a jump ({kind})")
    left_out = len(calibration.points) - len(shown)
    return [*lines, f"and {left_out} sizes between them"] if left_out else lines


def _spread(measured: Point | Batch) -> str:
    """Return the spread of repeats; a single one has none."""
    return f"{measured.spread_ms:.2f}" if measured.repeats > 1 else "-"


def _notable(points: Sequence[Point], heads: Mapping[int, str]) -> list[Point]:
    """Return powers of two, the ends, and both sides of each edge."""
    ends = {points[0].tokens, points[-1].tokens}
    return [
        point
        for point in points
        if point.tokens in ends
        or point.tokens & (point.tokens - 1) == 0
        or point.tokens in heads
        or point.tokens - 1 in heads
    ]


def _batch_lines(calibration: Calibration) -> list[str]:
    if not calibration.batches:
        return ["No decode step was measured."]
    head = f"{'Requests':>8} {'ms':>9} {'spread':>8} {'tokens/s':>9} {'repeats':>8}"
    return [head] + [
        f"{each.requests:>8} {each.median_ms:>9.2f} {_spread(each):>8} "
        f"{each.requests / each.median_ms * 1e3:>9.0f} {each.repeats:>8}"
        for each in calibration.batches
    ]


def _edge_lines(calibration: Calibration) -> list[str]:
    if not calibration.edges:
        return ["No size stands out: one more token makes no step dearer than repeats vary by."]
    return ["Where one more token makes a step dearer"] + [
        f"{edge.from_tokens:>8} to {edge.to_tokens:<6} {edge.jump_ms:>+9.2f} ms "
        f"{edge.jump_ratio:>+8.1%}  "
        + ("largest captured CUDA graph" if edge.kind == "capture" else "tile or wave")
        for edge in calibration.edges
    ]


def _price_lines(calibration: Calibration) -> list[str]:
    limit = calibration.capture_limit
    quantum = calibration.quantum
    rows = {
        "Quantum": "none stands out" if quantum is None else f"{quantum} tokens",
        "CUDA graphs": "none" if limit is None else f"up to {limit} tokens",
        "Context": _price(calibration.kv_token_ns, "a token read by a decode"),
        "Attention": _price(calibration.pair_ns, "a pair of tokens in a prefill"),
    }
    if calibration.best_flops_per_s is not None:
        rows["Best rate"] = f"{calibration.best_flops_per_s / 1e12:.3g} TFLOP/s"
    return [f"{name:<12}{text}" for name, text in rows.items()]


def _price(price_ns: float | None, what: str) -> str:
    return "not measured" if price_ns is None else f"{price_ns:.3g} ns for {what}"


def plot_lines(calibration: Calibration) -> list[str]:
    """Return step time against tokens as text, both on logarithmic axes, edges marked below.

    Each column shows its dearest point: ``*`` for a step that runs as a CUDA graph, ``o`` for one
    that does not. Empty with fewer than two points.
    """
    points = calibration.points
    if len(points) < 2:
        return []
    limit = calibration.capture_limit or 0
    columns = _columns([point.tokens for point in points])
    times = np.log([point.median_ms for point in points])
    rows = _rows(times)
    grid = [[" "] * _PLOT_WIDTH for _ in range(_PLOT_HEIGHT)]
    for point, column, row in zip(points, columns, rows, strict=True):
        grid[row][column] = "*" if point.tokens <= limit else "o"
    marks = [" "] * _PLOT_WIDTH
    at = dict(zip((point.tokens for point in points), columns, strict=True))
    for edge in calibration.edges:
        marks[at[edge.from_tokens]] = "C" if edge.kind == "capture" else "^"
    labels = {
        0: float(np.exp(times.max())),
        _PLOT_HEIGHT // 2: float(np.exp((times.max() + times.min()) / 2)),
        _PLOT_HEIGHT - 1: float(np.exp(times.min())),
    }
    legend = "* as a CUDA graph, o without" if limit else "o a step"
    lines = [f"Step time in ms against tokens, both logarithmic: {legend}"]
    for number, cells in enumerate(grid):
        label = f"{labels[number]:.3g}" if number in labels else ""
        lines.append(f"{label:>9} |{''.join(cells)}".rstrip())
    lines.append(f"{'':>9} +{'-' * _PLOT_WIDTH}")
    if calibration.edges:
        lines.append(f"{'edges':>9}  {''.join(marks)}".rstrip())
    lines.append(f"{'':>9}  {_axis(points[0].tokens, points[-1].tokens)}".rstrip())
    return lines


def _columns(tokens: Sequence[int]) -> list[int]:
    low, high = math.log(tokens[0]), math.log(tokens[-1])
    scale = (_PLOT_WIDTH - 1) / (high - low)
    return [round((math.log(each) - low) * scale) for each in tokens]


def _rows(times: F8) -> list[int]:
    span = float(times.max() - times.min()) or 1.0
    heights = (times.max() - times) / span * (_PLOT_HEIGHT - 1)
    return [round(float(height)) for height in heights]


def _axis(low: int, high: int) -> str:
    """Return powers of four under their columns, as far as there is room."""
    powers = [4**k for k in range(16) if low <= 4**k <= high]
    text = ""
    for power, column in zip(powers, _columns([low, *powers, high])[1:-1], strict=True):
        if column >= len(text) + bool(text) and column + len(str(power)) <= _PLOT_WIDTH:
            text = f"{text:<{column}}{power}"
    return text
