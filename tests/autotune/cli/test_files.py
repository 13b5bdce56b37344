from __future__ import annotations

import io
from pathlib import Path
from typing import TextIO, cast

import pytest

from autotune.cli.files import TolerantStream, write_text
from autotune.errors import EnvironmentFault


class Lost(io.StringIO):
    """A terminal that is closed after a number of writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write(self, text: str) -> int:
        if self.left == 0:
            raise OSError(5, "Input/output error")
        self.left -= 1
        return super().write(text)


def test_a_lost_stream_is_silent_and_costs_nothing() -> None:
    lost = Lost(1)
    stream = TolerantStream(cast("TextIO", lost))
    assert [stream.write("a"), stream.write("bc"), stream.write("d")] == [1, 2, 1]
    stream.flush()
    assert lost.getvalue() == "a"
    assert not stream.isatty()


def test_a_closed_stream_is_lost_too() -> None:
    closed = io.StringIO()
    closed.close()
    stream = TolerantStream(closed)
    assert stream.write("a") == 1


def test_a_result_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot write") as caught:
        write_text(tmp_path / "no" / "file", "x", hint="elsewhere")
    assert caught.value.hint == "elsewhere"
