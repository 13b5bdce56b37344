from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.export.document import FlagFacts
from autotune.export.options import Option, model_words, resolve, stands_alone, words

FACTS: FlagFacts = {
    "enforce_eager": {"flag": "--enforce-eager", "negative": "--no-enforce-eager", "default": ""},
    "disable_log_stats": {"flag": "--disable-log-stats", "negative": None, "default": "false"},
    "hf_token": {"flag": "--hf-token", "negative": None, "default": "null"},
    "offload_params": {"flag": "--offload-params", "negative": None, "default": "[]"},
    "lora_target_modules": {"flag": "--lora-modules", "negative": None, "default": "null"},
    "internal": {"flag": None, "negative": None, "default": "3"},
}


def line(engine_args: dict[str, object], flags: FlagFacts | None = None) -> list[str]:
    return [word for option in resolve(engine_args, flags).given for word in words(option)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (24, ["--some-name", "24"]),
        (-1, ["--some-name", "-1"]),
        (-0.5, ["--some-name=-0.5"]),
        (0.92, ["--some-name", "0.92"]),
        ("8k", ["--some-name", "8k"]),
        ("", ["--some-name", ""]),
        ("--config", ["--some-name=--config"]),
        (True, ["--some-name"]),
        (False, ["--no-some-name"]),
        ([1, 2], ["--some-name", "1", "2"]),
        (("a", "b c"), ["--some-name", "a", "b c"]),
        ({"on": False, "x": [1]}, ["--some-name", '{"on": false, "x": [1]}']),
        ({}, ["--some-name", "{}"]),
        (None, []),
    ],
)
def test_without_facts_the_naming_rule_of_vllm_holds(value: object, expected: list[str]) -> None:
    assert line({"some_name": value}) == expected


def test_facts_decide_the_flag() -> None:
    assert line({"lora_target_modules": ["q"], "enforce_eager": False}, FACTS) == [
        "--lora-modules",
        "q",
        "--no-enforce-eager",
    ]


@pytest.mark.parametrize(
    "argument", [("disable_log_stats", False), ("offload_params", []), ("internal", 3)]
)
def test_a_value_without_a_form_is_left_out_where_it_is_the_default(
    argument: tuple[str, object],
) -> None:
    options = resolve(dict([argument]), FACTS)
    assert options.given == ()
    assert options.implied == dict([argument])


@pytest.mark.parametrize(
    "argument",
    [
        ("hf_token", False),
        ("lora_target_modules", []),
        ("internal", 4),
        ("offload_params", ["a", "-b"]),
        ("offload_params", [{"a": 1}]),
        ("offload_params", [True]),
        ("offload_params", [None]),
    ],
)
def test_what_the_command_cannot_be_told_is_an_error_with_its_name(
    argument: tuple[str, object],
) -> None:
    with pytest.raises(UsageError, match=argument[0]):
        resolve(dict([argument]), FACTS)


def test_an_unknown_argument_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="enforce_eagre") as error:
        resolve({"enforce_eagre": True}, FACTS)
    assert "enforce_eager" in error.value.hint


@pytest.mark.parametrize("name", ["x; rm -rf", "a\nb", "", "a=b", "A", "é", "x: y"])
def test_a_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        resolve({name: 1}, None)


def test_the_model_is_no_option() -> None:
    assert resolve({"model": "m"}, None).given == ()
    assert model_words("./-odd") == ["./-odd"]
    assert model_words(None) == []
    for model in ("", "--config", "-v"):
        with pytest.raises(UsageError, match="cannot be exported"):
            model_words(model)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("a-b", True), ("", True), ("-3", True), ("-3\n", False), ("-1.5", False), ("-x", False)],
)
def test_only_words_that_are_no_options_stand_alone(word: str, expected: bool) -> None:
    assert stands_alone(word) is expected


def test_an_option_knows_its_argument() -> None:
    assert resolve({"max_num_seqs": 8}, None).given == (
        Option("max_num_seqs", "--max-num-seqs", 8),
    )
