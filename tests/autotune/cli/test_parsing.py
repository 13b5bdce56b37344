"""What the option parser refuses, as two lines like every other error."""

from __future__ import annotations

import pytest

from tests.autotune.cli.conftest import Autotune


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["tuen"], "No such command 'tuen'", "`autotune --help` shows what it takes"),
        (["trace", "wat"], "No such command 'wat'", "`autotune trace --help` shows what it takes"),
        (["tune", "--trails", "5"], "No such option: --trails", "did you mean '--trials'?"),
        (["-x"], "No such option: -x", "`autotune --help` shows what it takes"),
        (["best", "--stduy-name=x"], "--stduy-name", "did you mean '--study-name'?"),
        (["best", "--format", "xml"], "'--format': 'xml' is not one of 'yaml'", "best --help"),
        (
            ["tune", "--trials", "many"],
            "'--trials': must be a whole number",
            "`autotune tune --help`",
        ),
        (["tune", "--trials"], "'--trials' requires an argument", "add --help to the command"),
        (["calibrate"], "Missing option '--model'", "`autotune calibrate --help`"),
        (["show", "first"], "'trial': must be a whole number", "`autotune show --help`"),
        (["best", "a", "b"], "unexpected extra argument", "`autotune best --help`"),
        (["tune", "--dry"], "No such option: --dry", "did you mean '--dry-run'?"),
        (
            ["tune", "--max-model-len", "8192"],
            "No such option: --max-model-len",
            "for an argument of vLLM write --engine-arg max_model_len=VALUE; `autotune tune",
        ),
        (["best", "--max-model-len", "8192"], "--max-model-len", "`autotune best --help` shows"),
        (
            ["tune", "--engine-arg", "max_model_len", "8192"],
            "unexpected extra argument(s) (8192)",
            "write it as one word: --engine-arg max_model_len=8192",
        ),
        (
            ["tune", "--knob", "block_size", "16,32"],
            "unexpected extra argument(s) (16,32)",
            "write it as one word: --knob block_size=16,32",
        ),
        (["tune", "demo:tiny-llama"], "extra argument", "option: --model demo:tiny-llama"),
        (["tune", "--model", "a", "b"], "unexpected extra argument", "`autotune tune --help`"),
        (["doctor", "--model", "x"], "--model", "it has no name: `autotune doctor MODEL`"),
        (["show", "--trial", "3"], "--trial", "it has no name: `autotune show TRIAL`"),
        (["trace", "inspect", "--trace=a"], "--trace", "`autotune trace inspect TRACE`"),
    ],
)
def test_what_the_parser_refuses_is_two_lines(
    autotune: Autotune, arguments: list[str], error: str, hint: str
) -> None:
    ran = autotune(*arguments)
    assert (ran.code, ran.out) == (2, "")
    first, second = ran.err.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


@pytest.mark.parametrize("arguments", [[], ["trace"]])
def test_a_group_without_a_command_is_answered_with_its_help(
    autotune: Autotune, arguments: list[str]
) -> None:
    ran = autotune(*arguments)
    assert ran.code == 2
    assert "Usage: " in ran.out
    assert "error: " not in ran.err


def test_debug_shows_where_the_parser_refused(autotune: Autotune) -> None:
    ran = autotune("--debug", "best", "--nonsense")
    assert ran.code == 2
    assert ran.err.startswith("Traceback (most recent call last):")
    assert ran.err.splitlines()[-2] == "error: No such option: --nonsense"


def test_no_control_character_reaches_the_terminal(autotune: Autotune) -> None:
    ran = autotune("best", "--study-name=\x1b[31mred\u202e", "\x1b[0m\x07")
    assert ran.code == 2
    assert all(each.isprintable() or each == "\n" for each in ran.err)
