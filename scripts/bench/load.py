"""How burstiness and reuse come through a change of load, by each method.

Dials recorded traces to other loads and measures them before and after. Nothing is replayed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError
from autotune.traffic.likeness import WINDOWS_S, Likeness, reused_share
from autotune.traffic.load import METHODS, Load
from autotune.traffic.model import Trace
from autotune.traffic.trace import load_trace

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TRACES = {
    "azure": DATA / "azure_conv_2023_first_2400s.csv",
    "mooncake": DATA / "mooncake_conversation_first_4000.jsonl",
}
LOADS = (0.5, 2.0, 4.0)
CACHE_TOKENS = (2_000_000, 10_000_000)


def main(words: Sequence[str]) -> int:
    given = _arguments().parse_args(words)
    body: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "loads": list(given.loads),
        "seeds": given.seeds,
        "traces": {},
    }
    for name, path in TRACES.items():
        if not path.exists():
            sys.stderr.write(f"{path} is not there; left out\n")
            continue
        recorded = load_trace(path)
        body["traces"][name] = {
            "file": path.name,
            "recorded": figures(recorded),
            "dialled": [
                row for load in given.loads for row in dialled(recorded, load, given.seeds)
            ],
        }
    given.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    if given.json:
        sys.stdout.write(json.dumps(body) + "\n")
    else:
        sys.stdout.write("\n".join(table(body)) + "\n")
    return 0


def dialled(recorded: Trace, factor: float, seeds: int) -> list[dict[str, Any]]:
    """Return the mean figures of a trace at another load by each method that can reach it."""
    rows = []
    for method in METHODS:
        try:
            load = Load.of(factor, method)
        except AutotuneError:
            continue
        drawn = range(1 if method == "compress" else seeds)
        found = [figures(load.apply(recorded, seed=seed)) for seed in drawn]
        rows.append({"load": factor, "method": method, **_means(found)})
    return rows


def figures(trace: Trace) -> dict[str, float | None]:
    """Return what is compared: see ``Likeness``, the variation of the rate, and limited caches.

    ``variation_1s`` is the standard deviation of the rate over its mean once what a Poisson
    process of that rate would vary is taken off: the index of dispersion less 1, normalised for
    the requests of a window. 0 where arrivals are more even than that.
    """
    seen = Likeness.of(trace)
    found: dict[str, float | None] = {
        "requests": len(trace.requests),
        "duration_s": trace.duration_s,
        "rate_per_s": seen.rate_per_s,
        "dispersion_1s": seen.dispersion_1s,
        "dispersion_10s": seen.dispersion_10s,
    }
    for window_s in WINDOWS_S:
        index, variation = found[f"dispersion_{window_s:g}s"], None
        if index is not None and seen.rate_per_s is not None:
            variation = math.sqrt(max(0.0, index - 1) / (seen.rate_per_s * window_s))
        found[f"variation_{window_s:g}s"] = variation
    found["reuse"] = seen.reuse
    for tokens in CACHE_TOKENS:
        found[f"reuse_{tokens // 1_000_000}m"] = reused_share(trace, cache_tokens=tokens)
    return found


def table(body: dict[str, Any]) -> list[str]:
    """Return the Markdown rows of docs/results/README.md."""
    caches = [f"{tokens // 1_000_000}m" for tokens in CACHE_TOKENS]
    heads = ["trace", "load", "by", "requests/s", "dispersion at 1 s, 10 s"]
    heads += ["variation of the rate at 1 s, 10 s", "reuse"]
    heads += [f"within {', '.join(caches).upper()} tokens"]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for name, found in body["traces"].items():
        rows = [{"load": 1, "method": "as recorded", **found["recorded"]}, *found["dialled"]]
        for row in rows:
            cells = [f"{row['load']:g}", row["method"], _shown(row["rate_per_s"])]
            cells += [
                ", ".join(_shown(row[f"{figure}_{seconds:g}s"]) for seconds in WINDOWS_S)
                for figure in ("dispersion", "variation")
            ]
            cells.append(_shown(row["reuse"], ".1%"))
            cells.append(", ".join(_shown(row[f"reuse_{cache}"], ".1%") for cache in caches))
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _shown(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else f"{value:{form}}"


def _means(found: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for name in found[0]:
        values = [each[name] for each in found]
        known = [value for value in values if value is not None]
        means[name] = sum(known) / len(known) if known else None
    return means


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--seeds", type=int, default=5, help="draws of what chance decides")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
