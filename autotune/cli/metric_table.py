"""The metrics of one trial, as ``autotune show`` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.cli.tables import figure

_UNITS = {
    "goodput": "requests/s",
    "request_throughput": "requests/s",
    "output_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "tokens_per_busy_s": "tokens/s",
    "prefix_hit_rate": "of prompt tokens",
    "utilization": "of the best FLOP/s",
}
_AGGREGATES = ("mean", "p50", "p90", "p95", "p99", "max")
_BOUND = "p95 <="
_MISSED_LEAST = ("mean", "p90", "p50", "max", "p99")
_NAME_WIDTH, _CELL_WIDTH = 24, 10


def metric_lines(
    metrics: Mapping[str, float | None],
    intervals: Mapping[str, Sequence[float | None]],
    *,
    width: int,
) -> list[str]:
    """Return latencies in ms as a matrix of aggregates, then what is no latency.

    The last column is the upper bound of p95, ``-`` where there is none. Utilization has a line
    only in a study that is calibrated. Where ``width`` is too small for all of it, columns are as
    narrow as they can be, and what is missed least is left out.
    """
    kinds = _kinds(metrics)
    if not kinds:
        return []
    rows = [["ms", *_AGGREGATES, _BOUND], *(_row(kind, metrics, intervals) for kind in kinds)]
    others = sorted(name for name in metrics if f"{name.partition('_')[0]}_p95" not in metrics)
    shown = [name for name in others if name != "utilization" or metrics[name] is not None]
    values = {name: figure(metrics[name], 3) for name in shown}
    if _NAME_WIDTH + _CELL_WIDTH * (len(rows[0]) - 1) <= width:
        matrix = _lines(rows, _NAME_WIDTH, _CELL_WIDTH)
        below = (f"{name:{_NAME_WIDTH}}{value:>{_CELL_WIDTH}}" for name, value in values.items())
    else:
        matrix = _narrow(rows, width)
        below = (f"{name} {value}" for name, value in values.items())
    units = (_UNITS.get(name, "") for name in shown)
    ends = zip(below, units, strict=True)
    return [*matrix, *(f"{line} {unit}".rstrip() for line, unit in ends)]


def _kinds(metrics: Mapping[str, float | None]) -> list[str]:
    """Return the latencies, those of all requests first: ``ttft``, …, ``ttft@long``, …."""
    found = []
    for metric in ("ttft", "tpot", "itl", "e2e"):
        for name in metrics:
            head, _, rest = name.partition("_")
            aggregate, at, group = rest.partition("@")
            if (head, aggregate) == (metric, "p95"):
                found.append(f"{metric}{at}{group}")
    return sorted(found, key=lambda each: each.partition("@")[2])


def _row(
    kind: str,
    metrics: Mapping[str, float | None],
    intervals: Mapping[str, Sequence[float | None]],
) -> list[str]:
    metric, at, group = kind.partition("@")
    values = [metrics.get(f"{metric}_{aggregate}{at}{group}") for aggregate in _AGGREGATES]
    upper = (intervals.get(f"{metric}_p95{at}{group}") or (None, None))[1]
    return [kind, *map(figure, values), figure(upper)]


def _narrow(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Return lines without the columns for which there is no room."""
    name = max(len(row[0]) for row in rows)
    cell = 1 + max(len(each) for row in rows for each in row[1:])
    out = set[str]()
    for each in _MISSED_LEAST:
        if name + cell * (len(rows[0]) - 1 - len(out)) <= width:
            break
        out.add(each)
    kept = [column for column, head in enumerate(rows[0]) if head not in out]
    return _lines([[row[column] for column in kept] for row in rows], name, cell)


def _lines(rows: Sequence[Sequence[str]], name: int, cell: int) -> Iterator[str]:
    for first, *values in rows:
        yield f"{first:{name}}" + "".join(f"{value:>{cell}}" for value in values)
