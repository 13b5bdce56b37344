"""Options that take a number take no other, whatever the command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.autotune.cli.forked import Commands

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
REST = {
    "tune": "--model demo:tiny-llama --trace demo:mixed",
    "replay": "--model demo:tiny-llama --trace demo:mixed",
    "compare": "a b --trace demo:mixed",
    "check": "x.yaml --serve --trace demo:mixed",
    "forecast": "--candidate 256/8",
    "trace import": "a.json b.jsonl",
    "trace load": "demo:mixed b.jsonl --load 1",
    "trace synth": "b.jsonl --scenario mixed --duration 10 --rate 1",
}
"""What else a command needs to come as far as its numbers."""

_SECTION = re.compile(r"^## `autotune ([a-z ]+)`$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"^\| `(--[a-z-]+)` \| number \|", re.MULTILINE)


def options() -> list[tuple[str, str]]:
    sections = _SECTION.findall(PAGE.read_text(encoding="utf-8"))
    return [(command, option) for command, text in sections for option in _NUMBER.findall(text)]


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as started:
        yield started


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
@pytest.mark.parametrize(("command", "option"), options())
def test_what_is_no_such_number_is_refused(
    command: str, option: str, number: str, commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text("model: demo:tiny-llama\n")
    conversation = '{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}'
    (tmp_path / "a.json").write_text(f'[{{"conversations": [{conversation}]}}]')
    arguments = [*command.split(), *REST[command].split(), option, number]
    ran = commands.run(arguments, folder=tmp_path, environ={})
    assert (ran.code, ran.out) == (2, "")
    error, hint = ran.err.splitlines()
    assert hint.startswith("hint: ")
    if option.endswith("-s"):
        said = "at least 0|more than 0" if number == "-1" else "a finite number"
        assert re.fullmatch(f"error: {option}: must be ({said})", error)
    else:
        assert any(word in error for word in option.removeprefix("--").split("-"))


def test_the_page_has_them_all() -> None:
    found = options()
    assert {command for command, _ in found} == set(REST)
    assert ("replay", "--warmup-s") in found
