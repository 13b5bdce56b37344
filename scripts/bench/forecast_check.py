"""Forecasts against measurements: what a profile says of candidates that ``trials`` measured.

The profile was made of a calibration and of replays of other traffic; neither the candidates nor
the trace need be known to it. Errors are relative, forecast over measured, by metric: of each
candidate, their median and their worst, and the rank correlation (Spearman) over candidates.

    scripts/bench/forecast_check OUT.json --trials TRIALS.json --engine sim:PROFILE --trace T
        [--window W]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.demo import resolve_trace
from autotune.forecast.simulation import Traffic, simulate
from autotune.simulated.profile import load_profile
from autotune.simulated.shape import shape_of
from autotune.traffic.trace import load_trace
from autotune.traffic.window import parse_window
from objectives.arrays import F8
from objectives.measurement import point_values

METRICS = ("ttft_p95", "tpot_p95", "itl_p99")


def measured(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], dict[str, float]]:
    """Return the geometric means over the replays of each candidate that no spell has hit."""
    cells: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["spell"] is None:
            cells.setdefault((row[TOKENS], row[SEQS]), []).append(row)
    return {
        cell: {name: float(np.exp(np.mean(np.log([r[name] for r in own])))) for name in METRICS}
        for cell, own in cells.items()
    }


def ranks(values: Sequence[float]) -> F8:
    return np.argsort(np.argsort(values)).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--trials", type=Path, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--window", default=None)
    given = parser.parse_args()
    profile = load_profile(given.engine)
    trace = load_trace(resolve_trace(given.trace))
    if given.window:
        trace = parse_window(given.window).apply(trace)
    trials = json.loads(given.trials.read_text(encoding="utf-8"))
    shape = shape_of(profile.info, delivery_s=profile.delivery_s)
    traffic = Traffic.of(trace, shape)
    rows: list[dict[str, Any]] = []
    for (tokens, seqs), actual in measured(trials["rows"]).items():
        replay = simulate(traffic, profile.step_times, shape, {TOKENS: tokens, SEQS: seqs})
        found = point_values(replay.samples, METRICS, classes=())
        off = {name: (found[name] or 0.0) / actual[name] - 1 for name in METRICS}
        rows.append(
            {
                TOKENS: tokens,
                SEQS: seqs,
                "measured": actual,
                "forecast": found,
                "errors": off,
            }
        )
    summary: dict[str, dict[str, float]] = {}
    for name in METRICS:
        errors = np.abs([row["errors"][name] for row in rows])
        pairs = [(row["measured"][name], row["forecast"][name]) for row in rows]
        one, other = (ranks(side) for side in zip(*pairs, strict=True))
        correlation = np.corrcoef(one, other)[0, 1]
        summary[name] = {
            "median": float(np.median(errors)),
            "worst": float(errors.max()),
            "rank_correlation": float(correlation),
        }
    result = {
        "profile": profile.identity,
        "device": trials["device"],
        "trace": trials["trace"],
        "requests": len(trace.requests),
        "summary": summary,
        "candidates": rows,
    }
    given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
