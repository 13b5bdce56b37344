"""In how few trials the search finds the best candidate, on truths that are known.

A truth is a table of measured step times with a simulated scheduler. The search knows a sweep of
it that is wrong by 7 % in all and by 5 % for each tile, and blind to what attention costs. Each
trial is a replay with the noise of its run and of its steps, with stalls and a slow drift. Regret
is by how much the score of the cell that a method would deploy is worse than the best there is,
all by the truth; a cell that breaks the budget counts 1 and by how much.

    scripts/bench/search [--json OUT.json] [--seeds 6] [--model fitted|shuffled] [--all]

``autotune`` is the product's own search and verdict, a study for each number of trials with all
that it spends on confirming; the others are Optuna's samplers as they are.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from search_methods import Bench, best_of
from search_truth import AZURE, CELLS, WINDOWS, Workload, workload

COUNTS = (2, 4, 6, 10, 20, 40)
PLAIN = ("tpe", "random", "qmc")
SLOW = ("gp", "grid")
AUTOTUNE = "autotune"
FEW, MANY = 6, 40
"""As good in so few trials as Optuna's sampler in so many: what is claimed."""


def searched(
    own: Workload, seed: int, methods: Sequence[str], *, shuffled: bool
) -> list[dict[str, Any]]:
    """Return a row for each method and number of trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    bench = Bench(own, seed, shuffled=shuffled)
    rows = []
    for name in methods:
        if name != AUTOTUNE:
            found = bench.plain(name, max(COUNTS))
            rows += [_row(own, seed, name, n, best_of(own, found[:n])) for n in COUNTS]
            continue
        for count in COUNTS:
            begun_s = time.perf_counter()
            search = bench.autotune(count)
            judged = search.judge()
            rows.append(
                {
                    **_row(own, seed, name, count, search.pick),
                    "verdict": None if judged is None else judged.code,
                    "phases": [
                        [each.phase, *each.candidate.values(), each.state] for each in search.rows
                    ],
                    "wall_s": time.perf_counter() - begun_s,
                }
            )
    return rows


def _row(own: Workload, seed: int, method: str, count: int, pick: int) -> dict[str, Any]:
    return {
        "workload": own.name,
        "seed": seed,
        "method": method,
        "trials": count,
        "pick": list(CELLS[pick].values()),
        "excess": float(own.goal.excess(own.logs[pick])),
        "regret": float(own.regrets[pick]),
    }


def _progress(rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> str:
    """Return the last pair's regrets as a line."""
    last = rows[-len(methods) * len(COUNTS) :]
    shown = [
        f"{name} " + " ".join(f"{row['regret']:.3f}" for row in last if row["method"] == name)
        for name in methods
    ]
    return f"{last[0]['workload']} {last[0]['seed']}: " + ", ".join(shown)


def mean_and_error(values: Sequence[float]) -> list[float | None]:
    """Return the mean and its standard error, None from a single value."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return [float(np.mean(values)), error]


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the regrets of all methods, and the paired differences from ``tpe``."""
    own: dict[tuple[str, int], dict[tuple[str, int], float]] = {}
    for row in rows:
        pairs = own.setdefault((row["method"], row["trials"]), {})
        pairs[row["workload"], row["seed"]] = row["regret"]
    methods = list(dict.fromkeys(method for method, _ in own))
    result: dict[str, Any] = {
        "regret": {
            method: {
                str(count): mean_and_error(list(own[method, count].values())) for count in COUNTS
            }
            for method in methods
        }
    }
    if {AUTOTUNE, "tpe"} <= set(methods):

        def difference(count: int, other: int) -> list[float | None]:
            first, second = own[AUTOTUNE, count], own["tpe", other]
            return mean_and_error([first[pair] - second[pair] for pair in first])

        result["autotune_minus_tpe"] = {str(count): difference(count, count) for count in COUNTS}
        result[f"autotune_{FEW}_minus_tpe_{MANY}"] = difference(FEW, MANY)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the figures go; else they are printed")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--workloads", default=",".join(WINDOWS))
    parser.add_argument("--model", choices=("fitted", "shuffled"), default="fitted")
    parser.add_argument("--all", action="store_true", help="gp and grid as well")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.all and importlib.util.find_spec("scipy") is None:
        parser.error("Optuna's GPSampler needs scipy: install it, or leave --all out")
    begun_s = time.perf_counter()
    methods = (AUTOTUNE, *PLAIN, *(SLOW if given.all else ()))
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.processes) as pool:
        truths = list(pool.map(workload, given.workloads.split(",")))
        tasks = [
            pool.submit(searched, own, seed, methods, shuffled=given.model == "shuffled")
            for seed in range(given.seeds)
            for own in truths
        ]
        for task in tasks:
            rows += task.result()
            print(_progress(rows, methods), file=sys.stderr, flush=True)
            result = {
                **summary(rows),
                **conditions(truths),
                "model": given.model,
                "pairs": len(rows) // (len(methods) * len(COUNTS)),
                "seconds": time.perf_counter() - begun_s,
            }
            if given.json is not None:
                # Again and again: it takes minutes, and what was interrupted is of use.
                given.json.write_text(
                    f"{json.dumps({**result, 'rows': rows})}\n", encoding="utf-8"
                )
    print(json.dumps(result if given.json is not None else {**result, "rows": rows}, indent=1))


def conditions(truths: Sequence[Workload]) -> dict[str, Any]:
    """Return what was searched."""
    return {
        "traffic": "azure_conv_2023" if AZURE.exists() else "generated",
        "workloads": {
            own.name: {
                "requests": len(own.trace.requests),
                "budget": own.budget.text,
                "feasible_share": float(own.kept.mean()),
                "best": list(CELLS[int(np.argmin(own.losses))].values()),
                "score_of_best": float(own.losses.min()),
            }
            for own in truths
        },
        "cells": len(CELLS),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
