"""What files that are no request traces look like, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.traffic.formats.outline import outline

_NEEDED = "what is needed is the arrival, the prompt tokens and the output tokens of every request"
_LINES = (
    "write each request as a line of JSON: "
    '{"timestamp": 0, "input_length": 160, "output_length": 238}'
)
_OURS = frozenset(("timestamp", "input_length", "output_length"))
_LOG = re.compile(
    r"(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|(?:\(\w.*\) )?(?:INFO|WARNING|ERROR|DEBUG)\b"
    r"|\d{1,3}(?:\.\d{1,3}){3} - )",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.:/()%-]{0,30}")
_MOST_NAMES = 6


@dataclass(frozen=True, slots=True)
class Likeness:
    """What a file seems to be, and what to do instead."""

    what: str
    hint: str


def likeness(head: str) -> Likeness | None:
    """Return what the beginning of a file looks like, None if it looks like nothing known.

    Nothing is quoted but names of columns and fields that look like names.
    """
    lower = head[:500].lower()
    if lower.startswith(("<!doctype html", "<html", "<head")):
        return Likeness(
            "is an HTML page, perhaps a login or an error in place of a download",
            "download it once more, and look at what came",
        )
    if head.startswith("<"):
        return Likeness("is XML or HTML", _NEEDED)
    if head.startswith(("# HELP", "# TYPE")):
        return Likeness(
            "is a page of Prometheus metrics: sums over requests, not requests",
            "capture the requests themselves: autotune capture --help",
        )
    if head[0] in "[{":
        return _json(head)
    if _LOG.match(head):
        return Likeness(
            "is a log: vLLM's has no lengths at its usual level",
            f"{_NEEDED}; a gateway's usage records have them",
        )
    return _table(head)


def _json(head: str) -> Likeness | None:
    found = outline(head)
    if not found.keys:
        if re.fullmatch(r"[\[{\s\]}]*", head):
            return Likeness("is an empty list or object: no requests", _NEEDED)
        return None
    # One object a line is a row, of which the reader of rows says more.
    if not found.is_list and "\n" not in head.partition("}")[0].strip():
        return None
    if found.is_list and found.keys >= _OURS:
        return Likeness("has the fields of a trace, but is a list, not JSON Lines", _LINES)
    return Likeness(f"is JSON with {_names(sorted(found.keys))}, not requests", _NEEDED)


def _table(head: str) -> Likeness | None:
    for mark in (",", ";", "\t"):
        cells = [cell.strip().strip('"') for cell in head.split(mark)]
        if frozenset(cells) >= _OURS:
            return Likeness("has the fields of a trace, but is a table, not JSON Lines", _LINES)
        if len(cells) > 1 and all(_NAME.fullmatch(cell) for cell in cells):
            return Likeness(
                f"is a table with {_names(cells)}, and has no columns of tokens that are known",
                _NEEDED,
            )
    return None


def _names(given: list[str]) -> str:
    """Return names of fields, if all of them are plain words, which no text is."""
    if not all(_NAME.fullmatch(name) for name in given):
        return "fields of other names"
    rest = " …" if len(given) > _MOST_NAMES else ""
    return ", ".join(given[:_MOST_NAMES]) + rest
