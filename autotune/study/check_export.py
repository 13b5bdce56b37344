"""An export read back: what it sets, where it comes from, and what it promises."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import UsageError
from autotune.export.document import Export, FlagFacts, Interval
from autotune.export.render import render
from autotune.user_files import read_small
from objectives.limits import METRICS
from objectives.statistics import AGGREGATES

MAX_VALUES = 10_000
"""In the value of one setting; aliases of YAML make billions of a few lines."""

_HINT = "give a file of `autotune best --format yaml` or `--format json`"

_FACT = re.compile(r"# ([A-Za-z0-9_@. -]+?): (.*)")
_BETWEEN = re.compile(r"interval ([^\s,]+) to ([^\s,]+)")
_RATES = (
    "goodput",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "tokens_per_busy_s",
    "utilization",
    "prefix_hit_rate",
)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export says.

    Attributes:
        source: the file, or the study, in words.
        model: None where the export has none.
        settings: engine arguments by their names in vLLM, without the model.
        provenance: where it comes from, as ``autotune best`` writes it.
        metrics: what was measured; None where a metric did not exist.
        intervals: their bounds.
        text: the YAML to be served, None where that has to be made.
    """

    source: str
    model: str | None
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    text: str | None = None

    def served_text(self, flags: FlagFacts | None = None) -> str:
        """Return the file that ``vllm serve --config`` reads, unchanged where it is one."""
        if self.text is not None:
            return self.text
        export = Export(self.model, {}, self.settings, self.provenance)
        return render(export, "yaml", flags=flags)

    def traffic(self) -> dict[str, Any]:
        """Return the settings by which its traffic is read again; trace None if it has none."""
        told = self.provenance
        window, load, held = (told.get(name) for name in ("window", "load", "holdout"))
        return {
            # Traffic has no need of a model; settings have.
            "model": self.model or "unnamed",
            "trace": None if told.get("trace") is None else str(told["trace"]),
            "window": None if window in (None, "all") else str(window),
            "load": None if load in (None, 1) else load,
            "holdout": None if held is None else str(held),
        }


def of_export(export: Export, source: str) -> Exported:
    """Return what a study's export says, without writing it first."""
    return Exported(
        source=source,
        model=export.model,
        settings=dict(export.engine_args),
        provenance=dict(export.provenance),
        metrics=dict(export.metrics),
        intervals=dict(export.intervals),
    )


def read_export(path: Path) -> Exported:
    """Read a YAML or JSON export.

    Raises:
        UsageError: the file cannot be read, or is no export of these forms.
    """
    try:
        text = read_small(path)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is no UTF-8 text", hint=_HINT) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from None
    if text.lstrip().startswith("{"):
        return _of_json(path, text)
    try:
        given = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f", line {line + 1}"
        raise UsageError(f"{path}{where}: is no YAML", hint=_HINT) from None
    if not isinstance(given, dict) or not given:
        raise UsageError(f"{path}: sets nothing: no `key: value` lines", hint=_HINT)
    provenance, metrics, intervals = _header(text)
    model, settings = _settings(given, path)
    return Exported(str(path), model, settings, provenance, metrics, intervals, text)


def _of_json(path: Path, text: str) -> Exported:
    try:
        given = json.loads(text)
        model, settings = given["model"], dict(given["engine_args"])
        if not isinstance(model, str | None):
            raise TypeError
        return Exported(
            source=str(path),
            model=model,
            settings=settings,
            provenance=dict(given["provenance"]),
            metrics={name: measured(value) for name, value in given["metrics"].items()},
            intervals={
                name: (measured(low), measured(high))
                for name, (low, high) in given["intervals"].items()
            },
        )
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
        raise UsageError(f"{path}: is no export of autotune", hint=_HINT) from None


def measured(value: object) -> float | None:
    """Return a figure of a JSON file, None for none.

    Raises:
        TypeError: it is no number.
        OverflowError: it is beyond all numbers that mean anything.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _settings(given: Mapping[Any, Any], path: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the model and the engine arguments that the keys of a file stand for."""
    for key in given:
        if not isinstance(key, str):
            raise UsageError(f"{path}: {key!r} is no name of an option", hint=_HINT)
        if (fault := _no_plain_value(given[key])) is not None:
            raise UsageError(f"{path}: {key}: {fault}", hint="quote it, or write it out")
    settings = dict(_setting(key.replace("-", "_"), value) for key, value in given.items())
    model = settings.pop("model", None)
    if not isinstance(model, str | None):
        raise UsageError(f"{path}: model: is no name", hint="quote it")
    return model, settings


def _no_plain_value(value: object) -> str | None:
    """Return why a value is none that JSON could say; None if it is one."""
    waiting, seen = [value], 0
    while waiting:
        each = waiting.pop()
        seen += 1
        if seen > MAX_VALUES:
            return f"has more than {MAX_VALUES:,} values"
        if isinstance(each, dict):
            if not all(isinstance(key, str) for key in each):
                return "has a name that is no text"
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
        elif not isinstance(each, str | bool | int | float | None):
            return f"is a {type(each).__name__}, not a text, a number, a list or a mapping"
    return None


def _setting(name: str, value: Any) -> tuple[str, Any]:
    if name.startswith("no_") and value is True:
        return name.removeprefix("no_"), False
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError, RecursionError):
            return name, json.loads(value)
    return name, value


def _header(
    text: str,
) -> tuple[dict[str, Any], dict[str, float | None], dict[str, Interval]]:
    """Return provenance, metrics and intervals from the comments that a file begins with."""
    provenance: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    intervals: dict[str, Interval] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        fact = _FACT.fullmatch(line)
        if fact is None:
            continue
        key, said = fact.groups()
        if _is_metric(key):
            metrics[key] = _number(said.partition(",")[0])
            if (ends := _BETWEEN.search(said)) is not None:
                intervals[key] = (_number(ends[1]), _number(ends[2]))
        else:
            provenance[key] = _value(said)
    return provenance, metrics, intervals


def _is_metric(key: str) -> bool:
    name, _, kind = key.partition("@")[0].partition("_")
    return key in _RATES or (name in METRICS and kind in AGGREGATES)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _value(text: str) -> Any:
    """Return what the header wrote as JSON or, where that is none, as a text."""
    if text == "not recorded":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
