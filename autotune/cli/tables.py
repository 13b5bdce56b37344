"""What all tables and sentences share, on a terminal or piped into something."""

from __future__ import annotations

import itertools
import math
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from objectives.limits import Budget

PIPED_WIDTH = 120
"""Columns where the output is no terminal and COLUMNS does not say otherwise."""

_SECONDS_UP_TO = 100
_MINUTES_UP_TO = 100
_LIST_SHOWN = 8
_DIGITS = 6


def console(stream: TextIO | None = None) -> Console:
    """Return a console for ``stream`` (stdout by default); colour only on a terminal."""
    from rich.console import Console

    stream = stream or sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    # Names of studies and values of knobs are text, whatever brackets they have.
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def figure(value: float | None, digits: int = 1) -> str:
    """Return a number as it is shown, ``-`` where there is none.

    With ``digits`` behind the point, and unless whole numbers are asked for, more where that
    leaves fewer than two that count: what is not 0 is not shown as 0.0.
    """
    if value is None:
        return "-"
    if math.isinf(value):
        return "inf"
    first = math.floor(math.log10(abs(value))) if value else 0
    if not (value and digits) or -first < digits:
        return f"{value:.{digits}f}"
    if first < -_DIGITS:
        return f"{value:.1e}"
    # Of 0.50 the last digit says nothing.
    return f"{value:.{1 - first}f}".removesuffix("0")


def duration(seconds: float) -> str:
    """Return a time as people say it: ``50 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < _SECONDS_UP_TO:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < _MINUTES_UP_TO:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def joined(parts: Sequence[str]) -> str:
    """Return parts as a sentence lists them: ``a, b and c``."""
    *most, last = parts or [""]
    return f"{', '.join(most)} and {last}" if most else last


def limits(candidate: Mapping[str, Any]) -> str:
    """Return a candidate in a few characters: ``2048/128`` and further knobs by name."""
    names = ("max_num_batched_tokens", "max_num_seqs")
    rest = [f"{name}={written(value)}" for name, value in candidate.items() if name not in names]
    return " ".join(["/".join(str(candidate[name]) for name in names), *rest])


def written(value: object) -> str:
    """Return the value of an argument as it is written with ``--knob``; of a long list the ends.

    ``[1,2,4,8]``, or ``[1,2,…,512; 51 values]``.
    """
    if not isinstance(value, list | tuple):
        return str(value)
    texts = list(map(str, value))
    if len(texts) <= _LIST_SHOWN:
        return f"[{','.join(texts)}]"
    return f"[{texts[0]},{texts[1]},…,{texts[-1]}; {len(texts)} values]"


def budget_text(budget: Budget) -> str:
    """Return a budget as it was given, with no more digits than count where it was worked out."""
    return " ".join(
        each.text
        if each.limit_ms is None or each.limit_ms >= 10**_DIGITS
        else f"{each.key}:{each.limit_ms:.{_DIGITS}g}"
        for each in budget.limits
    )


def ruled(heading: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """Return a table in lines: a heading, a rule, and columns as wide as they must be.

    Where that is wider than ``width``, a row is several lines, the first of its first cell.
    """
    lines = _ruled(heading, rows)
    if len(lines[1]) <= width:
        return lines
    return [
        line
        for first, *rest in rows
        for line in stacked(first, map(" ".join, zip(heading[1:], rest, strict=True)), width)
    ]


def stacked(first: str, parts: Iterable[str], width: int) -> list[str]:
    """Return lines for a screen too narrow for a table: one part a line, below the first."""
    below = (
        textwrap.wrap(part, width, initial_indent="  ", subsequent_indent="    ") for part in parts
    )
    return [*textwrap.wrap(first, width, subsequent_indent="  "), *itertools.chain(*below)]


def _ruled(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join(padded).rstrip()

    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return [line(heading), rule, *map(line, rows)]


def cropped(line: str, width: int) -> str:
    """Return a line of a table as far as there is room for it."""
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


def plain_line(text: str) -> str:
    """Return text without control characters, so that no name can drive the terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)
