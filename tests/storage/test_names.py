from __future__ import annotations

import pytest

from storage.errors import UnusableName
from storage.names import check_name


@pytest.mark.parametrize(
    "name",
    ["it's", 'a "b"', "a/b", "../a", "100 %", "🙂", "\u202eabc", "--study", "x" * 1000, " a "],
)
def test_names_of_one_line(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "cannot be seen"),
        ("  \u3000", "cannot be seen"),
        ("x" * 1001, "at most 1000 characters, this one 1001"),
        ("a\nb", "line break"),
        ("a\x1b[0m", "control character"),
        ("a\u2028b", "line break"),
        ("a\0b", "no database stores"),
        ("a\ud800b", "no database stores"),
    ],
)
def test_names_that_nobody_could_read_or_store(name: str, reason: str) -> None:
    with pytest.raises(UnusableName, match=reason) as caught:
        check_name(name)
    assert caught.value.hint
