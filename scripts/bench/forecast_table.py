"""Prints the tables of docs/results/README.md from what ``scripts/bench/forecast_check`` wrote.

.venv/bin/python scripts/bench/forecast_table.py FORECAST.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS = ("ttft_p95", "tpot_p95", "itl_p99")
HEADS = "TTFT p95 | TPOT p95 | ITL p99"


def tables(result: Mapping[str, Any]) -> list[str]:
    """Return lines of Markdown: medians over all candidates, then the errors of each."""
    nearest = result["nearest_study"]
    own = {
        name: [each for each in candidates(result, name) if not each["baseline"]]
        for name in nearest["of_series"]
    }
    lines = [
        f"| median (worst) of the absolute errors, rank correlation | {HEADS} |",
        "| --- | --- | --- | --- |",
        _summary(f"all {result['cells']} candidates, by the nearest study", nearest["all"]),
        *[_summary(f"by {name}", study["all"]) for name, study in result["studies"].items()],
    ]
    for traffic, summary in nearest["by_traffic"].items():
        count = sum(len(own[name]) for name, kind in result["traffic"].items() if kind == traffic)
        lines.append(_summary(f"{count} of {traffic}", summary))
    lines += [
        "",
        f"| traffic | tokens/seqs | replays | measured TTFT p95, ms | {HEADS} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, cells in own.items():
        lines += [_candidate(name if cell is cells[0] else "", cell) for cell in cells]
    return lines


def candidates(result: Mapping[str, Any], series: str) -> list[Mapping[str, Any]]:
    study = result["studies"][result["nearest_study"]["of_series"][series]]
    found: list[Mapping[str, Any]] = study["series"][series]["candidates"]
    return found


def _summary(title: str, summary: Mapping[str, Mapping[str, float | None]]) -> str:
    parts = []
    for name in METRICS:
        median, worst, correlation = summary[name].values()
        rank = "" if correlation is None else f", {correlation:.2f}"
        parts.append(f"{100 * (median or 0):.1f} % ({100 * (worst or 0):.0f}){rank}")
    return f"| {title} | {' | '.join(parts)} |"


def _candidate(title: str, cell: Mapping[str, Any]) -> str:
    limits = f"{cell['max_num_batched_tokens']}/{cell['max_num_seqs']}"
    errors = [f"{100 * cell['errors'][name]:+.1f} %".replace("-", "−") for name in METRICS]
    ttft_ms = f"{cell['measured']['ttft_p95']:.0f}"
    return f"| {' | '.join([title, limits, str(cell['replays']), ttft_ms, *errors])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    print("\n".join(tables(json.loads(given.file.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
