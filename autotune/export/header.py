"""The comment at the head of a text export: where its figures come from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from autotune.export.document import Export, Interval

_VERDICT_WORDS = {
    "code": "verdict",
    # A verdict that keeps the default may have "kept": false, which is about the budget.
    "kept": "upper bounds keep the budget",
}


def header(export: Export, implied: Mapping[str, object], *, use: str) -> list[str]:
    """Return comment lines; nothing in the values can end a line or hide from the eye."""
    return [f"# {printable(key)}: {printable(text)}" for key, text in _facts(export, implied, use)]


def printable(text: str) -> str:
    """Write control, bidirectional and other invisible characters as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def _facts(export: Export, implied: Mapping[str, object], use: str) -> Iterator[tuple[str, str]]:
    if export.notice:
        yield "NOTE", export.notice
    yield "use", use
    for key, value in export.provenance.items():
        yield key, _text(value)
    for key, value in (export.verdict or {}).items():
        if isinstance(value, str | bool | int | float):
            yield _VERDICT_WORDS.get(key, f"verdict {key}"), _text(value)
    baseline = export.baseline or {}
    for key in export.headline or export.metrics:
        parts = [_text(export.metrics.get(key)), _interval(export.intervals.get(key))]
        if key in baseline:
            parts.append(f"baseline {_text(baseline[key])}")
        yield key, ", ".join(filter(None, parts))
    for key, value in implied.items():
        yield "left out", f"{key}={_text(value)}, the default of vllm serve, has no option"
    if export.model is None:
        yield "model", export.model_words


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    low, high = ("unbounded" if end is None else _text(end) for end in interval)
    return f"interval {low} to {high}"


def _text(value: object) -> str:
    if value is None:
        return "not recorded"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
