"""Prints the tables of docs/results/README.md from what ``scripts/bench/search`` wrote.

.venv/bin/python scripts/bench/search_table.py SEARCH.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PASSED = {True: "", False: " (**missed**)", None: " (one pair: no error)"}


def tables(result: Mapping[str, Any]) -> list[str]:
    """Return lines of Markdown: mean regrets, then paired differences with the bars missed."""
    counts = list(next(iter(result["regret"].values())))
    lines = [
        f"| mean regret after | {' | '.join(counts)} trials |",
        f"| --- |{' --- |' * len(counts)}",
    ]
    for method, regrets in result["regret"].items():
        lines.append(_line(f"`{method}`", [_value(regrets[count]) for count in counts]))
    alone = []
    for name, bar in result["bars"].items():
        title = f"{name.replace('_minus_', ' − ').replace('_', ' at ')}, paired"
        if "difference" in bar:
            alone += ["", f"{title}: {_difference(bar)}"]
        else:
            lines.append(_line(title, [_difference(bar[count]) for count in counts]))
    return lines + alone


def _line(title: str, values: Sequence[str]) -> str:
    return f"| {title} | {' | '.join(values)} |"


def _value(found: Sequence[float | None], sign: str = "") -> str:
    mean, error = found
    shown = f"{mean:{sign}.3f}".replace("-", "−")
    return shown if error is None else f"{shown} ± {error:.3f}"


def _difference(bar: Mapping[str, Any]) -> str:
    return f"{_value(bar['difference'], '+')}{PASSED[bar['passed']]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    result = json.loads(given.file.read_text(encoding="utf-8"))
    print("\n".join(tables(result)))
    told = {name: result[name] for name in ("traffic", "pairs", "seconds", "workloads")}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
