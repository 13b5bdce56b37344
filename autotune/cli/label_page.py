"""A page of lines under labels in its margin, as wide as a terminal is at least."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence

from autotune.cli.tables import cropped, plain_line
from autotune.traffic.picture import WIDTH

MARGIN = 10
"""Columns of the labels."""

_GOES_ON = " \\"


class Page:
    """Collects lines of at most 80 columns under labels."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, parts: Iterable[str]) -> None:
        """Add sentences, each from a line of its own."""
        for part in parts:
            wrapped = textwrap.wrap(
                plain_line(part),
                WIDTH - MARGIN,
                break_on_hyphens=False,
                subsequent_indent="  ",
            )
            for line in wrapped:
                self.lines.append(f"{name:{MARGIN}}{line}".rstrip())
                name = ""

    def add_rows(self, name: str, rows: Iterable[str]) -> None:
        """Add lines of a table, cut off where they are too long."""
        for row in rows:
            self.lines.append(f"{name:{MARGIN}}{cropped(row, WIDTH - MARGIN)}".rstrip())
            name = ""

    def add_command(self, words: Sequence[str]) -> None:
        """Add a command that can be copied, on several lines where it is long."""
        line, indent = "", " " * MARGIN
        for word in map(shlex.quote, words):
            if line and len(indent + line + word) + len(" ") + len(_GOES_ON) > WIDTH:
                self.lines.append(f"{indent}{line}{_GOES_ON}")
                line, indent = "", " " * (MARGIN + 2)
            line = f"{line} {word}" if line else word
        self.lines.append(f"{indent}{line}")
