from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.label_page import MARGIN, Page

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), max_size=12)


def test_a_label_stands_before_the_first_line_alone() -> None:
    page = Page()
    page.add("next", ["word " * 30, "More."])
    assert page.lines[0].startswith("next      word")
    assert [line[:MARGIN].strip() for line in page.lines] == ["next", "", "", ""][
        : len(page.lines)
    ]
    assert max(map(len, page.lines)) <= 80


def test_control_characters_do_not_reach_the_terminal() -> None:
    page = Page()
    page.add("x", ["a\x1b[31mb"])
    assert "\x1b" not in page.lines[0]


def test_rows_are_cut_and_not_wrapped() -> None:
    page = Page()
    page.add_rows("gain", ["y" * 200])
    (line,) = page.lines
    assert (len(line), line[-1]) == (80, "…")


@given(st.lists(WORDS, min_size=1, max_size=12))
def test_a_command_can_be_copied_whatever_its_length(words: list[str]) -> None:
    page = Page()
    page.add_command(words)
    copied = "\n".join(page.lines).replace("\\\n", " ")
    assert shlex.split(copied) == words
    assert max(map(len, page.lines)) <= 80
