from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from autotune.cli.machine_doctor import Mask, machine_json, result_lines
from autotune.study.doctor import machine
from autotune.study.doctor.results import Result
from tests.autotune.cli.conftest import Autotune

URL = "postgresql+psycopg://alice:hunter2@db7.example.com/studies"
FINE = Result("python", "ok", "3.12.4", "never shown")
WARNED = Result("hub", "warn", "offline, in /home/alice/.cache on node12", "unset it, alice")
BROKEN = Result("database", "fail", f"Cannot use {URL}", "see to it")


@pytest.fixture
def mask() -> Mask:
    return Mask(URL, home="/home/alice", users=["alice"], hosts=["node12.lan", "node12"])


def examined(monkeypatch: pytest.MonkeyPatch, *results: Result) -> None:
    def examine(_subject: machine.Subject) -> Iterator[Result]:
        yield from results

    monkeypatch.setattr(machine, "examine", examine)


def test_a_line_for_each_check_with_a_hint_where_there_is_something_to_do(
    autotune: Autotune, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined(monkeypatch, FINE, WARNED)
    ran = autotune("doctor")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "ok    python: 3.12.4",
        "warn  hub: offline, in /home/alice/.cache on node12",
        "      hint: unset it, alice",
    ]


@pytest.mark.parametrize("form", [("--json",), ("--format", "json"), ()])
def test_what_fails_has_an_exit_code_of_its_own(
    autotune: Autotune, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    examined(monkeypatch, FINE, BROKEN)
    ran = autotune("doctor", "--storage", URL, *form)
    assert ran.code == 4
    assert ran.err.startswith("error: not fit for a study: database\n")
    assert "hunter2" not in ran.out + ran.err


def test_the_document_for_an_issue_names_nobody(mask: Mask) -> None:
    shown = machine_json([FINE, WARNED, BROKEN], mask)
    assert shown["state"] == "fail"
    text = json.dumps(shown)
    assert [name for name in ("alice", "node12", "hunter2", "/home") if name in text] == []
    assert "offline, in ~/.cache on <host>" in text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("node12.lan and node12", "<host> and <host>"),
        ("node123", "node123"),
        ("malice of alice", "malice of <user>"),
        ("process 4 on node12 since 07:00", "process 4 on <host> since 07:00"),
    ],
)
def test_whole_words_are_masked(mask: Mask, text: str, masked: str) -> None:
    assert mask(text) == masked


def test_common_and_short_names_are_left() -> None:
    mask = Mask("sqlite:///x.db", home="/", users=["root", "me"], hosts=["localhost"])
    assert mask("root at / on localhost, me too") == "root at / on localhost, me too"


def test_long_words_are_wrapped(mask: Mask) -> None:
    lines = list(result_lines(Result("disk", "warn", "word " * 40, "hint " * 40), URL))
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("      ") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("demo:tiny-llama", "--json"), "not both"),
        (("demo:tiny-llama", "--endpoint", "x"), "not both"),
        (("--trace", "demo:mixed"), "need a model"),
        (("--json", "--endpoint", "none"), "--config"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    autotune: Autotune, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], error: str
) -> None:
    examined(monkeypatch)
    ran = autotune("doctor", *arguments)
    assert ran.code == 2
    assert error in ran.err
