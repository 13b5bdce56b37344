"""Two results of one configuration side by side: before an upgrade and after it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.export.document import Interval
from autotune.study.check_export import measured, read_export
from autotune.user_files import read_small
from objectives.limits import METRICS

_HINT = (
    "give an export of `autotune best`, or what `autotune check --serve --output` or "
    "`autotune replay --output` wrote"
)
_BENCH = re.compile(r"(mean|median|p\d+|max)_(ttft|tpot|itl|e2el)_ms")
_OF_ITS_OWN = ("instance_id", "data_parallel_master_port", "data_parallel_rpc_port")
"""What differs from start to start."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file holds of one configuration.

    Attributes:
        source: the file.
        facts: versions, device and the size of the KV cache, by name; None where unknown.
        metrics: latencies in ms, and rates.
        intervals: of some of them.
        arguments: of the engine by name, or by path where a server resolved them.
        resolved: whether vLLM has resolved them.
        traffic: sha256 of what was replayed; None where unknown.
    """

    source: str
    facts: Mapping[str, object]
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    arguments: Mapping[str, object]
    resolved: bool
    traffic: str | None


@dataclass(frozen=True, slots=True)
class Side:
    """One value then and now.

    Attributes:
        name: of a fact, metric or argument.
        kind: ``fact``, ``metric`` or ``argument``.
        then, now: None where it is not known.
        change: relative, of numbers; None of others.
        beyond_noise: of a metric, whether the intervals leave each other's values out; None
            where there are none.
    """

    name: str
    kind: str
    then: object
    now: object
    change: float | None = None
    beyond_noise: bool | None = None


def read_stored(path: Path) -> Stored:
    """Read an export, or the JSON of a check or a replay.

    Raises:
        UsageError: it is none of these.
    """
    try:
        text = read_small(path)
        given = json.loads(text) if text.lstrip().startswith("{") else None
    except (OSError, ValueError, RecursionError):
        raise UsageError(f"{path}: cannot be read", hint=_HINT) from None
    if given is None or "engine_args" in given:
        found = read_export(path)
        told = found.provenance
        facts = {name: told.get(name) for name in ("vllm", "torch", "device", "kv_cache_tokens")}
        sha = told.get("trace_sha256")
        return Stored(str(path), facts, found.metrics, found.intervals, found.settings, False, sha)
    try:
        return _of_check(str(path), given) if "served" in given else _of_replay(str(path), given)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        raise UsageError(f"{path}: is no result of autotune", hint=_HINT) from None


def _of_check(source: str, given: Mapping[str, Any]) -> Stored:
    served = given["served"]
    if served is None:
        raise UsageError(f"{source}: nothing was served", hint=_HINT)
    here = given["here"]
    facts = {
        "vllm": here["vllm"],
        "torch": here["torch"],
        "device": ", ".join(dict.fromkeys(here["devices"])),
        "kv_cache_tokens": served["kv_cache_tokens"],
    }
    bounds = {
        name: (measured(low), measured(high)) for name, (low, high) in served["intervals"].items()
    }
    metrics = {name: measured(value) for name, value in served["metrics"].items()}
    return Stored(
        source, facts, metrics, bounds, dict(served["resolved"]), True, served["traffic"]
    )


def _of_replay(source: str, given: Mapping[str, Any]) -> Stored:
    metrics = {}
    for key, value in given.items():
        if (found := _BENCH.fullmatch(key)) is not None:
            kind, metric = found.groups()
            name = "e2e" if metric == "e2el" else metric
            metrics[f"{name}_{'p50' if kind == 'median' else kind}"] = measured(value)
    metrics["output_throughput"] = measured(given["output_throughput"])
    limits = ("max_num_batched_tokens", "max_num_seqs")
    return Stored(
        source=source,
        facts={
            "vllm": given.get("vllm_version"),
            "torch": None,
            "device": given.get("device"),
            "kv_cache_tokens": given.get("kv_cache_tokens"),
        },
        metrics=metrics,
        intervals={},
        arguments={name: given[name] for name in limits if name in given},
        resolved=False,
        traffic=given["trace_sha256"],
    )


def side_by_side(then: Stored, now: Stored) -> tuple[Side, ...]:
    """Return facts, metrics that both have, and arguments in which they differ.

    Resolved arguments are compared with resolved ones alone: a file names a few of them.
    """
    return (*_facts(then, now), *_metrics(then, now), *_arguments(then, now))


def _facts(then: Stored, now: Stored) -> Iterator[Side]:
    same_traffic = None
    if then.traffic is not None and now.traffic is not None:
        same_traffic = then.traffic == now.traffic
    yield Side("same_traffic", "fact", None, same_traffic)
    for name, value in then.facts.items():
        yield Side(name, "fact", value, now.facts.get(name), _change(value, now.facts.get(name)))


def _metrics(then: Stored, now: Stored) -> Iterator[Side]:
    for name, value in then.metrics.items():
        other = now.metrics.get(name)
        known = name == "output_throughput" or name.partition("_")[0] in METRICS
        if known and value is not None and other is not None:
            ends = then.intervals.get(name), now.intervals.get(name)
            beyond = _apart(value, other, *ends)
            yield Side(name, "metric", value, other, _change(value, other), beyond)


def _apart(then: float, now: float, old: Interval | None, new: Interval | None) -> bool | None:
    """Whether neither value lies in the other's interval; None where one has none."""
    if old is None or new is None:
        return None
    return not _inside(now, old) and not _inside(then, new)


def _inside(value: float, ends: Interval) -> bool:
    low, high = ends
    return (low is None or value >= low) and (high is None or value <= high)


def _arguments(then: Stored, now: Stored) -> Iterator[Side]:
    if then.resolved == now.resolved:
        names = dict.fromkeys([*then.arguments, *now.arguments])
    else:
        names = dict.fromkeys(name for name in then.arguments if name in now.arguments)
    for name in names:
        pair = then.arguments.get(name), now.arguments.get(name)
        if pair[0] != pair[1] and name.rpartition(".")[2] not in _OF_ITS_OWN:
            yield Side(name, "argument", *pair, _change(*pair))


def _change(then: object, now: object) -> float | None:
    try:
        one, other = measured(then), measured(now)
    except (TypeError, OverflowError):
        return None
    if one is None or other is None or not (0 < one < math.inf and math.isfinite(other)):
        return None
    return other / one - 1
