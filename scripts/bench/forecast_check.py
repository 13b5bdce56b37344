"""Forecasts against measurements: what studies forecast of candidates that were measured.

Each forecast knows the sweep and one replay of the baseline of a study, and nothing of the
candidate. Where a series of measurements has a baseline of its own, the first replay of that
corrects the forecasts of its other candidates, as it does in a study; its other cells alone count.
Errors are relative, forecast over measured: their median and their worst by metric, and the rank
correlation (Spearman), over all cells and over those of each series.

    scripts/bench/forecast_check OUT.json --study STUDY.json ... --replays REPLAYS.json
        [--steps FOLDER]

With ``--steps`` step times are compared with those that were recorded, too.
A file of replays has ``series``: of each a name, ``words``, the kind of its ``traffic``, a
``trace``, the ``study`` of the same machine if there is one, its ``baseline`` and ``rows``, one
for each replay.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from forecast_steps import of_folder
from forecast_study import Study, write_lines

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, integer
from autotune.demo import resolve_trace
from autotune.forecast.forecaster import Forecasts, forecast_cells
from autotune.forecast.residuals import correct
from autotune.forecast.simulation import Traffic
from autotune.traffic.model import Trace, TraceMeta, TraceRequest
from autotune.traffic.trace import load_trace
from autotune.traffic.window import parse_window
from objectives.arrays import F8
from objectives.measurement import point_values
from objectives.samples import RequestSamples

METRICS = ("ttft_p95", "tpot_p95", "itl_p99")
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
"""Where recorded traffic lies that is not part of the project."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Replays of one traffic on one engine, or on engines of one machine.

    Attributes:
        name: for people.
        traffic: the kind of it; errors are told of each kind, too.
        study: name of the study of the same machine, None where there is none.
        trace: what was replayed.
        cells: candidates, the baseline first if it was measured.
        logs: [cells, metrics], means of the logs over the replays of each cell.
        replays: how many of each cell.
        baseline: [metrics], logs of the first replay of the baseline, None without one.
    """

    name: str
    traffic: str
    study: str | None
    trace: Trace
    cells: Sequence[Candidate]
    logs: F8
    replays: Sequence[int]
    baseline: F8 | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        found: dict[tuple[int, int], list[F8]] = {}
        base = tuple(data["baseline"]) if data["baseline"] else None
        rows = [row for row in data["rows"] if row.get("spell") is None]
        for row in sorted(rows, key=lambda row: (row[TOKENS], row[SEQS]) != base):
            logs = np.log([row[name] for name in METRICS])
            found.setdefault((row[TOKENS], row[SEQS]), []).append(logs)
        return cls(
            name=data["name"],
            traffic=data["traffic"],
            study=data["study"],
            trace=read_trace(data["trace"]),
            cells=[{TOKENS: tokens, SEQS: seqs} for tokens, seqs in found],
            logs=np.array([np.mean(own, axis=0) for own in found.values()]),
            replays=[len(own) for own in found.values()],
            baseline=None if base is None else found[base][0],
        )

    @property
    def judged(self) -> slice:
        """The cells of which the forecast knows nothing."""
        return slice(0 if self.baseline is None else 1, None)


def read_trace(told: Mapping[str, Any]) -> Trace:
    """Return the traffic that a file of replays tells of.

    ``path``, or ``shared``, the name of a recorded file; with ``shorter_than``, the tokens of
    prompt and answer that a request has to stay below, with ``window``, and with ``density``, by
    how much closer together the requests were replayed.
    """
    path = SHARED / told["shared"] if "shared" in told else resolve_trace(told["path"])
    trace = load_trace(path)
    if (most := told.get("shorter_than")) is not None:
        whole = trace.requests
        trace = _with([r for r in whole if r.input_length + r.output_length < most], trace.meta)
    if "window" in told:
        trace = parse_window(told["window"]).apply(trace)
    density = told.get("density", 1)
    dense = [replace(each, timestamp_ms=each.timestamp_ms / density) for each in trace.requests]
    return _with(dense, trace.meta)


def _with(requests: Sequence[TraceRequest], meta: TraceMeta) -> Trace:
    return Trace.build(
        requests,
        block_size=meta.block_size,
        prefixes_known=meta.prefixes_known,
        source=meta.source,
    )


def measure(samples: RequestSamples) -> Mapping[str, float | None]:
    return point_values(samples, METRICS, classes=())


def forecast(series: Series, study: Study) -> tuple[F8, F8]:
    """Return [cells, metrics], logs by step times alone, and corrected by the baseline."""
    found = forecast_cells(
        series.cells,
        Traffic.of(series.trace, study.shape),
        study.times,
        study.shape,
        keys=METRICS,
        measure=measure,
    )
    if series.baseline is None:
        return found.logs, found.logs
    return found.logs, corrected(series.cells, found, series.baseline, error=study.times.error)


def corrected(cells: Sequence[Candidate], found: Forecasts, baseline: F8, *, error: float) -> F8:
    """Return the logs that a study expects when its baseline, the first cell, was measured."""
    return correct(
        found.logs,
        found.slopes,
        found.noise,
        np.log2([[integer(cell[TOKENS]), integer(cell[SEQS])] for cell in cells]),
        measured=np.array([0]),
        measured_logs=baseline[np.newaxis],
        time_error=error,
    ).logs


def ranks(values: F8) -> F8:
    return np.argsort(np.argsort(values)).astype(np.float64)


def summary(measured: F8, expected: F8) -> dict[str, dict[str, float | None]]:
    """Return of each metric how far [cells, metrics] of logs are off."""
    errors = np.abs(np.expm1(expected - measured))
    found: dict[str, dict[str, float | None]] = {}
    for column, name in enumerate(METRICS):
        one, other = (ranks(side[:, column]) for side in (measured, expected))
        found[name] = {
            "median": float(np.median(errors[:, column])),
            "worst": float(errors[:, column].max()),
            "rank_correlation": float(np.corrcoef(one, other)[0, 1]) if one.size > 2 else None,
        }
    return found


def checked(series: Sequence[Series], studies: Mapping[str, Study]) -> dict[str, Any]:
    """Return the errors of all cells by each study, and by the nearest study of each series."""
    by_study: dict[str, Any] = {}
    nearest: list[tuple[Series, F8]] = []
    for name, study in studies.items():
        made = [(each, *forecast(each, study)) for each in series]
        by_study[name] = {
            "words": study.words,
            "step_times_error": study.times.error,
            "all": _together([(each, logs) for each, _, logs in made]),
            "by_step_times_alone": _together([(each, logs) for each, logs, _ in made]),
            "series": {
                each.name: {
                    "summary": _together([(each, logs)]),
                    "candidates": _candidates(each, plain, logs),
                }
                for each, plain, logs in made
            },
        }
        nearest += [(each, logs) for each, _, logs in made if nearest_of(each, studies) == name]
    return {
        "cells": sum(len(each.cells[each.judged]) for each in series),
        "replays": sum(sum(each.replays) for each in series),
        "traffic": {each.name: each.traffic for each in series},
        "nearest_study": {
            "all": _together(nearest),
            "by_traffic": {
                traffic: _together(
                    [(each, own) for each, own in nearest if each.traffic == traffic]
                )
                for traffic in dict.fromkeys(each.traffic for each in series)
            },
            "of_series": {each.name: nearest_of(each, studies) for each in series},
        },
        "studies": by_study,
    }


def nearest_of(series: Series, studies: Mapping[str, Study]) -> str:
    """Return the study of the same machine, else the last one."""
    last = list(studies)[-1]
    return last if series.study is None else series.study


def _together(made: Sequence[tuple[Series, F8]]) -> dict[str, dict[str, float | None]]:
    measured, expected = (
        np.concatenate(side)
        for side in zip(
            *[(each.logs[each.judged], logs[each.judged]) for each, logs in made], strict=True
        )
    )
    return summary(measured, expected)


def _candidates(series: Series, plain: F8, logs: F8) -> list[dict[str, Any]]:
    def named(values: F8) -> dict[str, float]:
        return dict(zip(METRICS, map(float, np.round(values, 4)), strict=True))

    return [
        {
            **cell,
            "replays": series.replays[row],
            "baseline": row < (series.judged.start or 0),
            "measured": named(np.exp(series.logs[row])),
            "forecast": named(np.exp(logs[row])),
            "errors": named(np.expm1(logs[row] - series.logs[row])),
            "errors_by_step_times_alone": named(np.expm1(plain[row] - series.logs[row])),
        }
        for row, cell in enumerate(series.cells)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--study", type=Path, action="append", required=True)
    parser.add_argument("--replays", type=Path, action="append", required=True)
    parser.add_argument("--steps", type=Path, help="folder of recorded steps")
    given = parser.parse_args(arguments)
    read = {path: json.loads(path.read_text(encoding="utf-8")) for path in given.study}
    studies = {path.stem: Study.from_json(data) for path, data in read.items()}
    told = [json.loads(path.read_text(encoding="utf-8"))["series"] for path in given.replays]
    series = [Series.from_json(each) for part in told for each in part]
    result = checked(series, studies)
    if given.steps is not None:
        steps = {name: of_folder(given.steps, study) for name, study in studies.items()}
        result["recorded_steps"] = steps
    write_lines(result, given.output)
    print(json.dumps(result["nearest_study"], indent=1))


if __name__ == "__main__":
    main()
