"""How often verdicts are right, and whether they are as sure as they should be.

Whole studies of the product, with its own search and verdict, on truths that are known: those of
the bench of searches, whose sweeps are wrong and whose replays have noise that the product is
not told of. Of each kind there are so many:

* ``default_best``: by the truth no cell beats the baseline by more than what a verdict calls
  settled, nor would one if limits were 5 % looser, and the baseline is 5 % below them. The
  verdict should be ``keep_default``.
* ``better_cell``: by the truth a cell has 15 % less of a latency that is scored, and is worse
  neither in another value with a limit nor in utilization. The study should find it.

Drawn for each study: which requests of the Azure trace and how many, how dense they come, which
values are limited and how tightly, the baseline among the cells that make a study of its kind,
the errors of the sweep, and all noise. The same for all: the lattice, the true step times, the
number of trials. Without that trace, traffic is generated.

    scripts/bench/honesty OUT.json [--studies 200] [--seed 0] [--processes 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from honesty_studies import CELLS, KINDS, LATTICE, TRIALS, Kind, Known, drawn
from search_truth import AZURE

from autotune.study.judgement import CONVERGED_COST, Judgement, verdict_json

BINS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Of stated probabilities; each without its upper end, but the last."""

TIED = 1e-9
PROGRESS_EVERY = 20
Row = Mapping[str, Any]


def studied(seed: int, kind: Kind) -> dict[str, Any]:
    """Return what one study said, and what was true."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    begun_s = time.process_time()
    known = drawn(seed, kind)
    search = known.tuned()
    judged = search.judge()
    own, base = known.workload, known.baseline
    return {
        "seed": seed,
        "kind": kind,
        "budget": own.budget.text,
        "baseline": _name(base),
        "baseline_regret": float(own.regrets[base]),
        "baseline_room": known.room,
        "best": _name(int(np.argmin(own.losses))),
        "trials": len(search.rows),
        **verdict(known, judged),
        "cpu_s": time.process_time() - begun_s,
    }


def verdict(known: Known, judged: Judgement | None) -> dict[str, Any]:
    """Return what a judgement says, with what is true of it."""
    if judged is None or judged.winner is None:
        code = None if judged is None else judged.code
        return {"verdict": code, "winner": None, "found": False}
    row_of = {_name(row): row for row in range(len(CELLS))}
    said = verdict_json(judged)
    regrets = known.workload.regrets
    stated = [regrets[row_of[_limits(each)]] for each in said["knee_set"]]
    winner = row_of[_limits(said["candidate"])]
    return {
        "verdict": said["code"],
        "winner": _name(winner),
        "found": known.found(winner),
        "regret": float(regrets[winner]),
        "probability": said["probability"],
        "expected_cost": said["expected_opportunity_cost"],
        "regret_bound": said["regret_bound"],
        "set_size": len(stated),
        "set_regret": float(min(stated)),
    }


def _name(row: int) -> str:
    return _limits(CELLS[row])


def _limits(candidate: Mapping[str, Any]) -> str:
    return "/".join(str(candidate[name]) for name in LATTICE.ladders)


def wilson(hits: int, count: int) -> dict[str, Any]:
    """Return a share with its 95 % interval by Wilson's score, None of nothing."""
    if not count:
        return {"share": None, "low": None, "high": None, "count": 0}
    z, share = 1.96, hits / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    whole = 1 + z * z / count
    low, high = (middle - half) / whole, (middle + half) / whole
    return {"share": share, "low": max(0.0, low), "high": min(1.0, high), "count": count}


def share(flags: Sequence[bool]) -> dict[str, Any]:
    return wilson(sum(flags), len(flags))


def reliability(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each bin of stated probabilities with what came of them.

    Args:
        rows: of studies with a winner.
    """
    places = np.digitize([row["probability"] for row in rows], BINS[1:-1])
    bins = []
    for place, (low, high) in enumerate(pairwise(BINS)):
        own = [row for row, at in zip(rows, places, strict=True) if at == place]
        bins.append({"low": low, "high": high, **calibration(own)})
    return bins


def calibration(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the mean stated probability, and the shares of winners that are the best."""
    stated = float(np.mean([row["probability"] for row in rows])) if rows else None
    return {
        "stated": stated,
        "as_good_as_best": share([row["regret"] <= CONVERGED_COST for row in rows]),
        "best": share([row["regret"] <= TIED for row in rows]),
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what is claimed of verdicts, with how sure that is.

    ``set_covers_share`` is the share of studies with a winner whose knee set has a cell that is
    truly the best, ``set_covers_as_good_share`` of those whose set has one as good.
    ``false_gain_share`` is that of best defaults for which a ``knee`` is claimed that is truly
    no better.
    """
    default, better = ([row for row in rows if row["kind"] == kind] for kind in KINDS)
    won = [row for row in rows if row["winner"] is not None]
    strict = [row for row in default if row["baseline_regret"] <= TIED]
    return {
        "keep_default_share": share([row["verdict"] == "keep_default" for row in default]),
        "keep_default_of_best_share": share([row["verdict"] == "keep_default" for row in strict]),
        "false_gain_share": share([_falsely_gains(row) for row in default]),
        "found_share": share([row["found"] for row in better]),
        "reliability": reliability(won),
        "overall": calibration(won),
        "set_covers_share": share([row["set_regret"] <= TIED for row in won]),
        "set_covers_as_good_share": share([row["set_regret"] <= CONVERGED_COST for row in won]),
        "bound_covers_share": share([row["regret"] <= row["regret_bound"] + TIED for row in won]),
        "expected_cost": _mean([row["expected_cost"] for row in won]),
        "true_cost": _mean([row["regret"] for row in won]),
        "verdicts": {
            kind: dict(Counter(row["verdict"] for row in rows if row["kind"] == kind))
            for kind in KINDS
        },
    }


def _falsely_gains(row: Row) -> bool:
    return row["verdict"] == "knee" and row["regret"] >= row["baseline_regret"] - TIED


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _progress(rows: Sequence[Row]) -> str:
    so_far = summary(rows)
    shares = " ".join(
        f"{name} {own['share']:.3f}"
        for name in ("keep_default_share", "found_share", "set_covers_share")
        if (own := so_far[name])["share"] is not None
    )
    cpu_s = _mean([row["cpu_s"] for row in rows])
    return f"{len(rows)} studies: {shares}, {cpu_s:.2f} CPU-seconds each"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--studies", type=int, default=200, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first ones; others count up")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures without studies")
    given = parser.parse_args()
    begun_s = time.perf_counter()
    rows: list[Row] = []
    with ProcessPoolExecutor(given.processes) as pool:
        tasks = [
            pool.submit(studied, seed, kind)
            for seed in range(given.seed, given.seed + given.studies)
            for kind in KINDS
        ]
        for task in tasks:
            rows.append(task.result())
            if len(rows) % PROGRESS_EVERY == 0 or len(rows) == len(tasks):
                print(_progress(rows), file=sys.stderr, flush=True)
                result = {
                    **summary(rows),
                    **conditions(),
                    "seconds": time.perf_counter() - begun_s,
                }
                # Again and again: it takes minutes, and what was interrupted is of use.
                given.out.write_text(
                    f"{json.dumps({**result, 'studies': rows})}\n", encoding="utf-8"
                )
    if given.json:
        print(json.dumps(result, indent=1))


def conditions() -> dict[str, Any]:
    """Return what was searched."""
    return {
        "traffic": "azure_conv_2023" if AZURE.exists() else "generated",
        "cells": len(CELLS),
        "trials": TRIALS,
        "tolerance": CONVERGED_COST,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
