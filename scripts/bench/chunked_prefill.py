"""What a step budget does to the token gaps of short requests, on a real engine.

Replays one trace against engines that differ in max_num_batched_tokens alone, in the order
A B B A …, and reports the ratio of ITL p99 over the short requests with its 90 % interval. Blocks
of requests are drawn once for both sides, since both replay the same rows.

    .venv/bin/python scripts/bench/chunked_prefill.py OUT.json [--repeats 3] [--budgets 4096,128]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autotune.settings import TuneSettings
from autotune.study.single import replay_once
from objectives.statistics import bootstrap_draws

SHORT_PROMPT = 1000
ENGINE_ARGS = {
    "load_format": "dummy",
    "enforce_eager": True,
    "max_model_len": 8192,
    "kv_cache_memory_bytes": 64 * 2**20,
    "max_num_seqs": 64,
}


class Printer:
    """Shows nothing of a replay but its notes."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)

    def progress(self, body: Mapping[str, Any]) -> None:
        pass


def short_gaps(result: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the token gaps in ms of the short requests, and the row of each."""
    rows = [
        (gap * 1000, row)
        for row, (length, gaps) in enumerate(
            zip(result["input_lens"], result["itls"], strict=True)
        )
        for gap in gaps
        if length < SHORT_PROMPT
    ]
    gaps, owner = zip(*rows, strict=True)
    return np.array(gaps), np.array(owner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budgets", default="4096,128")
    parser.add_argument("--model", default="demo:tiny-llama")
    parser.add_argument("--trace", default="demo:mixed")
    arguments = parser.parse_args()
    large, small = (int(text) for text in arguments.budgets.split(","))
    runs: list[dict[str, Any]] = []
    for repeat in range(arguments.repeats):
        for budget in (large, small) if repeat % 2 == 0 else (small, large):
            settings = TuneSettings(
                model=arguments.model,
                trace=arguments.trace,
                engine_args={**ENGINE_ARGS, "max_num_batched_tokens": budget},
                warmup_s=4.0,
            )
            runs.append({"budget": budget, **replay_once(settings, Printer())})
            gaps, _ = short_gaps(runs[-1])
            print(budget, f"ITL p99 of short requests {np.percentile(gaps, 99):.1f} ms")
    arguments.out.write_text(json.dumps(summarise(runs, large, small), indent=2) + "\n")


def summarise(runs: list[dict[str, Any]], large: int, small: int) -> dict[str, Any]:
    """Return the ratio with its interval, and the figures of each run."""
    draws, points = {}, {}
    for budget in (large, small):
        sides = [short_gaps(run) for run in runs if run["budget"] == budget]
        requests = len(runs[0]["input_lens"])
        points[budget] = np.mean([np.log(np.percentile(gaps, 99)) for gaps, _ in sides])
        draws[budget] = np.mean(
            [
                np.log(bootstrap_draws(gaps, "p99", owner=owner, requests=requests))
                for gaps, owner in sides
            ],
            axis=0,
        )
    low, high = np.quantile(np.exp(draws[large] - draws[small]), [0.05, 0.95])
    arrays = ("input_lens", "output_lens", "start_times", "ttfts", "itls")
    return {
        "ratio_itl_p99_short": float(np.exp(points[large] - points[small])),
        "interval_90": [float(low), float(high)],
        "budgets": [large, small],
        "runs": [
            {
                "itl_p99_short_ms": float(np.percentile(short_gaps(run)[0], 99)),
                **{name: value for name, value in run.items() if name not in arrays},
            }
            for run in runs
        ],
    }


if __name__ == "__main__":
    main()
