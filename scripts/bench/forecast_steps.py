"""Step times of a study against steps that were recorded elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from forecast_study import Study

from autotune.forecast.step_times import sum_errors
from objectives.steps import Steps

FULL = 0.95
"""A step with so much of the most tokens of any is full."""


def recorded(file: Path) -> Steps:
    """Return the steps of a CSV of ten columns: three stamps, and what was in each step."""
    rows = np.loadtxt(file, delimiter=",", skiprows=1)
    begun, planned, done, prefill, decodes, requests, waiting, contexts, kv, pairs = rows.T
    unknown = np.zeros(len(rows))
    known = [begun, planned, done, prefill, decodes, requests, requests, waiting]
    columns = [*known, unknown, unknown, contexts, kv, pairs]
    steps = Steps.from_rows(np.column_stack(columns))
    return steps.select(steps.tokens > 0)


def compared(steps: Steps, study: Study, *, overlapping: bool) -> dict[str, Any]:
    """Return how far a study's step times are off, in all and over sums of neighbours.

    And of the full steps between full ones, whose times no other kind of step can blur.
    """
    times = study.times
    expected_s = times.overlapped_s(steps) if overlapping else times.expected_s(steps)
    actual_s = steps.period_s if overlapping else steps.done_s - steps.begun_s
    sums = sum_errors(times, [steps], overlapping=overlapping)
    full = (steps.prefill_tokens > 0) & (steps.tokens >= FULL * steps.tokens.max())
    between = full.copy()
    between[1:-1] &= full[:-2] & full[2:]
    between[[0, -1]] = False
    return {
        "seconds": float(actual_s.sum()),
        "error_in_all": float(expected_s.sum() / actual_s.sum() - 1),
        "median_error_of_sums": float(np.median(np.abs(np.expm1(sums)))),
        "full_steps": int(between.sum()),
        "error_of_full_steps": float(expected_s[between].sum() / actual_s[between].sum() - 1),
    }


def of_folder(folder: Path, study: Study) -> dict[str, Any]:
    """Return the same of each file; those named sync were recorded with one step in flight."""
    return {
        file.name.split(".")[0]: compared(
            recorded(file), study, overlapping=not file.name.startswith("sync")
        )
        for file in sorted(folder.glob("*.csv.gz"))
    }
