"""In how few trials the search finds the best candidate, on truths that are known.

A truth is a table of measured step times with a simulated scheduler. The search knows a sweep of
it that is wrong by 7 % in all and by 5 % for each tile, and blind to what attention costs. Each
trial is a replay with the noise of its run and of its steps, with stalls and a slow drift. Regret
is by how much the score of the cell that a method would deploy is worse than the best there is,
all by the truth; a cell that breaks the budget counts 1 and by how much.

    scripts/bench/search [--json OUT.json] [--seeds 6] [--model fitted|shuffled|both] [--all]
        [--resume]

``autotune`` is the product's own search and verdict, a study for each number of trials with all
that it spends on confirming; ``shuffled`` is the same with step times that have nothing to do with
the machine's; the others are Optuna's samplers as they are.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from search_methods import Bench, best_of
from search_truth import AZURE, CELLS, WINDOWS, Workload, workload

COUNTS = (2, 4, 6, 10, 20, 40)
PLAIN = ("tpe", "random", "qmc")
SLOW = ("gp", "grid")
NEEDED = ("scipy", "torch")
"""By Optuna's GPSampler; both are in the extra ``bench``."""
AUTOTUNE, SHUFFLED = "autotune", "shuffled"
MODELS = {"fitted": (AUTOTUNE,), "shuffled": (SHUFFLED,), "both": (AUTOTUNE, SHUFFLED)}
FEW, MANY = 6, 40
"""As good in so few trials as Optuna's sampler in so many: what is claimed."""

SAME = ("traffic", "workloads", "methods")
"""What rows of two runs have to share to be of one result."""

Row = Mapping[str, Any]
Pair = tuple[str, int]


def searched(own: Workload, seed: int, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each method and number of trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    benches = {shuffled: Bench(own, seed, shuffled=shuffled) for shuffled in (False, True)}
    rows = []
    for name in methods:
        if name in (AUTOTUNE, SHUFFLED):
            bench = benches[name == SHUFFLED]
            rows += [_studied(own, seed, name, bench, count) for count in COUNTS]
        else:
            found = benches[False].plain(name, max(COUNTS))
            rows += [_row(own, seed, name, n, best_of(own, found[:n])) for n in COUNTS]
    return rows


def _studied(own: Workload, seed: int, name: str, bench: Bench, count: int) -> dict[str, Any]:
    """Return the row of a study of the product with so many trials."""
    begun_s = time.perf_counter()
    search = bench.autotune(count)
    judged = search.judge()
    return {
        **_row(own, seed, name, count, search.pick),
        "verdict": None if judged is None else judged.code,
        "phases": [[each.phase, *each.candidate.values(), each.state] for each in search.rows],
        "wall_s": time.perf_counter() - begun_s,
    }


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


def _progress(rows: Sequence[Row]) -> str:
    """Return the regrets of a pair as a line."""
    shown = [
        f"{name} " + " ".join(f"{row['regret']:.3f}" for row in rows if row["method"] == name)
        for name in dict.fromkeys(row["method"] for row in rows)
    ]
    return f"{rows[0]['workload']} {rows[0]['seed']}: " + ", ".join(shown)


def mean_and_error(values: Sequence[float]) -> list[float | None]:
    """Return the mean and its standard error, None from a single value."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return [float(np.mean(values)), error]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the regrets of all methods, and the bars with the paired differences they are of."""
    own: dict[tuple[str, int], dict[Pair, float]] = {}
    for row in rows:
        pairs = own.setdefault((row["method"], row["trials"]), {})
        pairs[row["workload"], row["seed"]] = row["regret"]
    methods = list(dict.fromkeys(method for method, _ in own))

    def bar(method: str, count: int, other: int) -> dict[str, Any]:
        first, second = own[method, count], own["tpe", other]
        return no_worse([first[pair] - second[pair] for pair in first])

    regret = {
        method: {str(count): mean_and_error(list(own[method, count].values())) for count in COUNTS}
        for method in methods
    }
    return {"regret": regret, "bars": bars(bar, methods)}


def no_worse(differences: Sequence[float]) -> dict[str, Any]:
    """Return the mean difference with its error, and whether it is 0 or less within two of them.

    A single pair tells nothing: None.
    """
    mean, error = found = mean_and_error(differences)
    passed = None if mean is None or error is None else mean <= 2 * error
    return {"difference": found, "passed": passed}


def bars(
    bar: Callable[[str, int, int], Mapping[str, Any]], methods: Sequence[str]
) -> dict[str, Any]:
    """Return what is claimed, with the figures; of methods that were run."""
    if "tpe" not in methods:
        return {}
    found: dict[str, Any] = {}
    if AUTOTUNE in methods:
        found[f"{AUTOTUNE}_{FEW}_minus_tpe_{MANY}"] = bar(AUTOTUNE, FEW, MANY)
    for method in (AUTOTUNE, SHUFFLED):
        if method in methods:
            found[f"{method}_minus_tpe"] = {str(n): bar(method, n, n) for n in COUNTS}
    return found


def given_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where the figures go; else they are printed")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(WINDOWS))
    parser.add_argument("--model", choices=MODELS, default="fitted")
    parser.add_argument("--all", action="store_true", help="gp and grid as well")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--resume", action="store_true", help="keep the pairs that the file of --json has"
    )
    given = parser.parse_args(arguments)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if given.all and missing:
        parser.exit(
            2, f"--all needs {' and '.join(missing)} for Optuna's GPSampler: the extra 'bench'\n"
        )
    if given.resume and given.json is None:
        parser.exit(2, "--resume goes on with the file of --json\n")
    return given


def kept_rows(file: Path, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier run, none where there was none.

    Raises:
        SystemExit: it searched something else.
    """
    if not file.exists():
        return []
    earlier = json.loads(file.read_text(encoding="utf-8"))
    other = [name for name in SAME if earlier.get(name) != told[name]]
    if other:
        raise SystemExit(f"{file} was made with another {', another '.join(other)}")
    found: list[dict[str, Any]] = earlier["rows"]
    return found


def main() -> None:
    given = given_of()
    begun_s = time.perf_counter()
    methods = (*MODELS[given.model], *PLAIN, *(SLOW if given.all else ()))
    with ProcessPoolExecutor(given.processes) as pool:
        truths = list(pool.map(workload, given.workloads))
        told = conditions(truths, methods)
        rows = kept_rows(given.json, told) if given.resume else []
        done = {(row["workload"], row["seed"]) for row in rows}
        tasks = [
            pool.submit(searched, own, seed, methods)
            for seed in range(given.seeds)
            for own in truths
            if (own.name, seed) not in done
        ]
        result = _result(rows, told, begun_s)
        for task in as_completed(tasks):
            found = task.result()
            rows += found
            print(_progress(found), file=sys.stderr, flush=True)
            result = _result(rows, told, begun_s)
            if given.json is not None:
                # Again and again: it takes minutes, and what was interrupted is of use.
                write({**result, "rows": rows}, given.json)
    print(json.dumps(result if given.json is not None else {**result, "rows": rows}, indent=1))


def _result(rows: Sequence[Row], told: Mapping[str, Any], begun_s: float) -> dict[str, Any]:
    pairs = {(row["workload"], row["seed"]) for row in rows}
    seconds = time.perf_counter() - begun_s
    return {**summary(rows), **told, "pairs": len(pairs), "seconds": seconds}


def write(result: Mapping[str, Any], file: Path) -> None:
    """Write JSON with a line for each key, and each row; never half of it."""
    told = {name: value for name, value in result.items() if name != "rows"}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in told.items()]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in result["rows"])
    part = file.with_name(f"{file.name}.part")
    part.write_text("{\n" + ",\n".join([*lines, f' "rows": [\n{rows}\n ]']) + "\n}\n", "utf-8")
    part.replace(file)


def conditions(truths: Sequence[Workload], methods: Sequence[str]) -> dict[str, Any]:
    """Return what was searched."""
    return {
        "traffic": "azure_conv_2023" if AZURE.exists() else "generated",
        "workloads": {
            own.name: {
                "requests": len(own.trace.requests),
                "source": own.trace.meta.source,
                "budget": own.budget.text,
                "feasible_share": float(own.kept.mean()),
                "best": list(CELLS[int(np.argmin(own.losses))].values()),
                "score_of_best": float(own.losses.min()),
            }
            for own in truths
        },
        "methods": list(methods),
        "cells": len(CELLS),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
