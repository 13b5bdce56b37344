"""What a step budget does to the token gaps of short requests, on a real engine.

Replays one trace against engines that differ in max_num_batched_tokens alone, in the order
A B B A …, and reports the ratio of ITL p99 over the short requests with two 90 % intervals: from
the pairs of runs (Student's t over log ratios: how well the runs repeat), and from drawing blocks
of requests, the same for both sides (how much it hangs on this traffic).

    scripts/bench/chunked_prefill OUT.json [--repeats 3] [--budgets 4096,128]
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
# Student's t at 0.95 one-sided, by degrees of freedom.
T_95 = (float("nan"), 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860)
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
    parser.add_argument("--repeats", type=int, default=3, choices=range(2, len(T_95) + 1))
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
    """Return the ratio with its intervals, and the figures of each run."""
    requests = len(runs[0]["input_lens"])
    logs, draws = {}, {}
    for budget in (large, small):
        sides = [short_gaps(run) for run in runs if run["budget"] == budget]
        logs[budget] = np.array([np.log(np.percentile(gaps, 99)) for gaps, _ in sides])
        drawn = [
            np.log(bootstrap_draws(gaps, "p99", owner=owner, requests=requests))
            for gaps, owner in sides
        ]
        draws[budget] = np.mean(drawn, axis=0)
    ratios = logs[large] - logs[small]
    width = T_95[ratios.size - 1] * ratios.std(ddof=1) / np.sqrt(ratios.size)
    by_blocks = np.quantile(draws[large] - draws[small], [0.05, 0.95])
    return {
        "ratio_itl_p99_short": float(np.exp(ratios.mean())),
        "interval_90_over_pairs": np.exp([ratios.mean() - width, ratios.mean() + width]).tolist(),
        "interval_90_over_requests": np.exp(by_blocks).tolist(),
        "budgets": [large, small],
        "runs": [shown(run) for run in runs],
    }


def shown(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run without its long arrays and without paths of this machine."""
    arrays = ("input_lens", "output_lens", "start_times", "ttfts", "itls")
    kept = {name: value for name, value in run.items() if name not in arrays}
    for name in ("model_id", "tokenizer_id", "trace"):
        kept[name] = Path(kept[name]).name
    return {"itl_p99_short_ms": float(np.percentile(short_gaps(run)[0], 99)), **kept}


if __name__ == "__main__":
    main()
