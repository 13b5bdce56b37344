from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.settings import TuneSettings, load_settings, parse_engine_args, parse_knobs

GIVEN: dict[str, Any] = {"model": "tiny", "trace": "t.jsonl"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "autotune.yaml"


def refusal(config: Path | None = None, **flags: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load_settings(config, {**GIVEN, **flags})
    assert caught.value.exit_code == 2
    assert caught.value.hint, caught.value.message
    return caught.value


def test_flags_alone_are_enough() -> None:
    settings = load_settings(None, GIVEN)
    assert settings == TuneSettings(model="tiny", trace="t.jsonl")
    assert settings.trials == 24
    assert settings.budget == ""


def test_flags_win_and_what_is_not_given_does_not_count(config: Path) -> None:
    config.write_text("model: big\ntrials: 5\nwarmup-s: 3\nbudget: ttft_p95:800\n")
    settings = load_settings(config, {**GIVEN, "trials": 7, "seed": None, "budget": None})
    assert settings.model == "tiny"
    assert settings.trials == 7
    assert settings.warmup_s == 3.0
    assert settings.budget == "ttft_p95:800"


def test_engine_arguments_and_knobs_are_merged_key_by_key(config: Path) -> None:
    config.write_text(
        "engine_args: {max_model_len: 4096, enforce_eager: true}\nknobs: {block_size: [16, 32]}\n"
    )
    settings = load_settings(
        config,
        {**GIVEN, "engine_args": {"max_model_len": 8192}, "knobs": {"async_scheduling": [True]}},
    )
    assert settings.engine_args == {"max_model_len": 8192, "enforce_eager": True}
    assert settings.knobs == {"block_size": [16, 32], "async_scheduling": [True]}


@pytest.mark.parametrize("name", ["model", "trace"])
def test_what_is_missing_is_named(name: str) -> None:
    error = refusal(**{name: None})
    assert error.message == f"--{name} is missing"
    assert f"give --{name}" in error.hint


def test_settings_that_lie_here_unasked_are_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "autotune.yaml").write_text("model: m\n")
    monkeypatch.chdir(tmp_path)
    assert "--config autotune.yaml" in refusal(model=None).hint


def test_an_unknown_key_gets_the_nearest_one(config: Path) -> None:
    config.write_text("trails: 5\n")
    error = refusal(config)
    assert error.message == f"{config}: unknown setting 'trails'"
    assert error.hint == "did you mean 'trials'?"


def test_a_key_like_no_other_gets_the_way_to_the_list(config: Path) -> None:
    config.write_text("xyzzy: 5\n")
    assert "autotune tune --help" in refusal(config).hint


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("trials", 0, "--trials: "),
        ("trials", 10_001, "--trials: "),
        ("trials", "many", "--trials: "),
        ("warmup_s", -1, "--warmup-s: "),
        ("warmup_s", float("nan"), "--warmup-s: must be a finite number"),
        ("warmup_s", float("inf"), "--warmup-s: must be a finite number"),
        ("warmup_s", 1e300, "--warmup-s: must be at most 86400"),
        ("model", " ", "--model: must name a model"),
        ("log_folder", "", "--log-folder: must name a folder; `.` is the current one"),
        ("start_timeout_s", float("inf"), "--start-timeout-s: must be a finite number"),
        ("start_timeout_s", 0, "--start-timeout-s: "),
        ("silence_timeout_s", float("nan"), "--silence-timeout-s: must be a finite number"),
        ("seed", -1, "--seed: "),
        ("seed", 2**31, "--seed: "),
        ("study_name", "", "--study-name: "),
        ("study_name", "x" * 1001, "--study-name: "),
        ("max_failures_in_a_row", 0, "--max-failures-in-a-row: "),
        ("knobs", {"block_size": []}, "--knob: knob block_size has no values"),
        ("knobs", {"block_size": [16, 16]}, "--knob: knob block_size names a value twice"),
        ("knobs", {"share": [0.5, float("nan")]}, "--knob: knob share has a value that is not"),
        ("knobs", {"share": [0.5, float("inf")]}, "--knob: knob share has a value that is not"),
        ("knobs", {"share": [0.5, 10**400]}, "--knob: knob share has a value of more than 64"),
        ("knobs", {"model": ["a", "b"]}, "--knob: knob model cannot be set: it has an option"),
        ("knobs", {"disable-log-stats": [True]}, "--knob: knob disable_log_stats cannot be set"),
        (
            "engine_args",
            {"hf-token": "hf_x"},
            "--engine-arg: hf_token cannot be set: arguments are",
        ),
        ("engine_args", ["max_model_len"], "--engine-arg: "),
    ],
)
def test_values_out_of_range_name_their_option(name: str, value: Any, said: str) -> None:
    assert refusal(**{name: value}).message.startswith(said)


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs"])
@pytest.mark.parametrize("value", ["a", 0, -1, 1.5, True, 2**31, 10**23])
def test_knobs_of_the_limits_are_whole_numbers(name: str, value: Any) -> None:
    error = refusal(knobs={name: [8, value]})
    assert error.message.startswith(f"--knob: knob {name} ")
    assert error.hint == "for example --knob max_num_seqs=64,128,256"


def test_knobs_of_the_limits_reach_to_31_bits() -> None:
    knobs = {"max_num_seqs": [1, 2**31 - 1]}
    assert load_settings(None, {**GIVEN, "knobs": knobs}).knobs == knobs


def test_a_value_of_the_file_names_the_file(config: Path) -> None:
    config.write_text("trials: no\n")
    assert refusal(config).message.startswith(f"{config}: --trials: ")


def test_a_flag_that_overrides_the_file_is_no_fault_of_the_file(config: Path) -> None:
    config.write_text("trials: 5\n")
    assert refusal(config, trials=0).message.startswith("--trials: ")


def test_values_that_only_look_equal_are_two() -> None:
    settings = load_settings(None, {**GIVEN, "knobs": {"x": [1, True]}})
    assert settings.knobs == {"x": [1, True]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [", "is no valid YAML"),
        (b"\xff\xfe", "is no valid YAML"),
        (b"- a\n- b\n", "does not hold settings"),
        (b"", "does not hold settings"),
        (b"!!python/object/apply:os.system [true]", "is no valid YAML"),
    ],
)
def test_a_file_that_holds_no_settings(config: Path, content: bytes, said: str) -> None:
    config.write_bytes(content)
    message = refusal(config).message
    assert str(config) in message
    assert said in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("model: m\ntrials: [1\nseed: 3\n", "line 3, column 5: expected ',' or ']', but got ':'"),
        ("model: \x07", "unacceptable character #x0007"),
        ("seed: 2024-99-99", "month must be in 1..12"),
        ("seed: " + "9" * 5000, "limit (4300 digits)"),
        ("knobs: " + "[" * 1000, "it is nested too deeply"),
    ],
    ids=["syntax", "character", "date", "digits", "brackets"],
)
def test_a_broken_file_is_named_in_one_line(config: Path, content: str, said: str) -> None:
    config.write_text(content)
    message = refusal(config).message
    assert message.startswith(f"{config} is no valid YAML: ")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", ["2024-99-99", "9" * 5000, "[" * 1000], ids=["date", "digits", "brackets"]
)
@pytest.mark.parametrize("parse", [parse_engine_args, parse_knobs])
def test_a_value_beyond_yaml_is_refused_in_one_short_line(
    parse: Callable[[Sequence[str]], Any], text: str
) -> None:
    with pytest.raises(UsageError, match=r" seed: .* is no valid value") as caught:
        parse([f"seed={text}"])
    assert len(caught.value.message) < 120


def test_a_file_that_cannot_be_read(config: Path) -> None:
    message = refusal(config).message
    assert message == f"cannot read {config}: No such file or directory"


def test_engine_arguments_are_yaml() -> None:
    items = [
        "max-model-len=8192",
        "--enforce_eager=true",
        "quantization=null",
        "dtype=bfloat16",
        "compilation_config={mode: 0}",
        "revision='1'",
        "served_model_name=a=b",
    ]
    assert parse_engine_args(items) == {
        "max_model_len": 8192,
        "enforce_eager": True,
        "quantization": None,
        "dtype": "bfloat16",
        "compilation_config": {"mode": 0},
        "revision": "1",
        "served_model_name": "a=b",
    }


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["max_model_len"], "--engine-arg 'max_model_len' is not key=value"),
        (["=5"], "--engine-arg '=5' is not key=value"),
        (["a=1", "--a=2"], "--engine-arg a is given twice"),
        (["a=[1"], "--engine-arg a: '[1' is no valid value"),
    ],
)
def test_engine_arguments_that_mean_nothing(items: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_engine_args(items)
    assert caught.value.message == said
    assert caught.value.hint


def test_knobs_are_lists_of_scalars() -> None:
    items = ["block-size=16,32", "async_scheduling=true,false", "policy=fcfs", "share=0.5, 1"]
    assert parse_knobs(items) == {
        "block_size": [16, 32],
        "async_scheduling": [True, False],
        "policy": ["fcfs"],
        "share": [0.5, 1],
    }


def test_a_value_of_a_knob_may_be_a_list() -> None:
    items = ["sizes=[1,2,4], [1, 8]", "words=[a],b", "odd=c[0],d]", "one=[1,2]"]
    assert parse_knobs(items) == {
        "sizes": [(1, 2, 4), (1, 8)],
        "words": [("a",), "b"],
        "odd": ["c[0]", "d]"],
        "one": [(1, 2)],
    }


def test_lists_are_the_same_from_a_file_and_from_the_command_line(config: Path) -> None:
    config.write_text("knobs: {sizes: [[1, 2], [1, 2, 4]]}\n")
    from_file = load_settings(config, GIVEN).knobs
    assert from_file == {"sizes": [(1, 2), (1, 2, 4)]}
    given = {"knobs": parse_knobs(["sizes=[1,2],[1,2,4]"])}
    assert load_settings(None, {**GIVEN, **given}).knobs == from_file


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[1, 2], [1, 2]], "names a value twice"),
        ([[]], "takes lists of numbers or words, one at least"),
        ([[1, True]], "takes lists of numbers or words, one at least"),
        ([[1, float("nan")]], "has a value that is not a finite number"),
        ([[1, 2**63]], "has a value of more than 64 bits"),
    ],
)
def test_lists_that_no_engine_could_be_given(values: Any, words: str) -> None:
    assert refusal(knobs={"sizes": values}).message == f"--knob: knob sizes {words}"


def test_a_limit_is_no_list() -> None:
    assert "whole numbers from 1" in refusal(knobs={"max_num_seqs": [[8, 16]]}).message


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("block_size", "--knob 'block_size' is not key=value"),
        ("block_size=", "--knob block_size: "),
        ("block_size=16,,32", "--knob block_size: "),
        ("sizes=[1, 2", "--knob sizes: "),
        ("sizes=[[1, 2], [4]]", "--knob sizes: "),
        ("sizes=[1, {a: 2}]", "--knob sizes: "),
        ("sizes=[1, null]", "--knob sizes: "),
        ("sizes=[1, 2] [4]", "--knob sizes: "),
        ("block_size={a: 1}", "--knob block_size: "),
        ("block_size=a,{", "--knob block_size: "),
        ("block_size=[16", "--knob block_size: "),
    ],
)
def test_knobs_that_mean_nothing(item: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_knobs([item])
    assert caught.value.message.startswith(said)
    assert caught.value.hint


@pytest.mark.parametrize("text", [".nan", ".inf", "2024-01-01", "{a: .nan}"])
def test_engine_arguments_that_json_cannot_hold_are_refused(text: str) -> None:
    given = {"model": "m", "trace": "t", "engine_args": parse_engine_args([f"seed={text}"])}
    with pytest.raises(UsageError, match="seed has a value that JSON cannot hold"):
        load_settings(None, given)


@pytest.mark.parametrize("name", ["model", "disable-log-stats", "hf_token"])
def test_arguments_that_are_ours_to_set_are_refused(name: str) -> None:
    given = {"model": "m", "trace": "t", "engine_args": parse_engine_args([f"{name}=true"])}
    with pytest.raises(UsageError, match="cannot be set"):
        load_settings(None, given)


def test_dashes_in_the_file_are_read_as_underscores_at_every_level(tmp_path: Path) -> None:
    config = tmp_path / "autotune.yaml"
    config.write_text(
        "model: m\ntrace: t\nengine-args: {max-model-len: 100}\nknobs: {block-size: [16, 32]}\n"
    )
    settings = load_settings(config, {})
    assert settings.engine_args == {"max_model_len": 100}
    assert settings.knobs == {"block_size": [16, 32]}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"engine_args": {"a\udcff": 1}}, "--engine-arg: 'a\\udcff' is no UTF-8"),
        ({"engine_args": {"a": {"b": ["\udcff"]}}}, "--engine-arg: '\\udcff' is no UTF-8"),
        ({"knobs": {"a\udcff": [1]}}, "--knob: "),
        ({"knobs": {"a": ["\udcff"]}}, "--knob: "),
        ({"a\udcff": 1}, "is no UTF-8"),
    ],
)
def test_text_that_cannot_be_exported_is_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(None, {"model": "m", "trace": "t", **flags})
    assert said in caught.value.message
    assert caught.value.hint == "write names and values in UTF-8"


def test_aliases_of_aliases_are_not_written_out(config: Path) -> None:
    lines = ["model: m", "trace: t", "engine_args:", "  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    config.write_text("\n".join(lines))
    with pytest.raises(UsageError, match="--engine-arg: more than 10000 values"):
        load_settings(config, {})


def test_aliases_nested_in_aliases_are_refused(config: Path) -> None:
    junk = ", ".join(f"&l{n} [{f'*l{n - 1}' if n else 1}]" for n in range(3000))
    config.write_text(f"model: m\ntrace: t\njunk: [{junk}]\nengine_args: {{x: *l2999}}\n")
    with pytest.raises(UsageError, match="--engine-arg: a value is nested more than 50 deep"):
        load_settings(config, {})


@pytest.mark.parametrize("depth", [49, 50])
def test_a_value_may_be_nested(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    given = {**GIVEN, "engine_args": {"x": value}}
    if depth == 49:
        assert load_settings(None, given).engine_args == {"x": value}
    else:
        with pytest.raises(UsageError, match="nested more than 50 deep"):
            load_settings(None, given)


@pytest.mark.parametrize("name", ["model", "trace", "storage", "log_folder"])
@pytest.mark.parametrize("sign", ["\\0", "\\e", "\\n", "\\x7F", "\\x85"])
def test_no_place_has_a_control_character(config: Path, name: str, sign: str) -> None:
    lines = {"model": "m", "trace": "t", name: f'"a{sign}b"'}
    config.write_text("".join(f"{each}: {text}\n" for each, text in lines.items()))
    with pytest.raises(UsageError) as caught:
        load_settings(config, {})
    option = name.replace("_", "-")
    assert caught.value.message == f"{config}: --{option}: must be without control characters"


def test_an_alias_of_what_it_stands_in_is_refused(config: Path) -> None:
    config.write_text("model: m\ntrace: t\nengine_args: {a: &a [*a]}\n")
    with pytest.raises(UsageError, match="JSON cannot hold"):
        load_settings(config, {})


def test_an_alias_is_its_value(config: Path) -> None:
    config.write_text("model: m\ntrace: t\nengine_args: {a: &a [1, 2], b: *a}\n")
    assert load_settings(config, {}).engine_args == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("value", [0, -1, True, "8k", 2**31, 1.5])
@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_limit_that_is_none_is_named_before_vllm_is_asked(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"--engine-arg: {name} takes whole numbers from 1 to"):
        load_settings(None, {"model": "m", "trace": "t", "engine_args": {name: value}})


def test_a_limit_may_be_left_to_vllm() -> None:
    given = {"model": "m", "trace": "t", "engine_args": {"max_num_seqs": None}}
    assert load_settings(None, given).engine_args == {"max_num_seqs": None}


def test_a_simulated_engine_need_not_be_given_a_model() -> None:
    settings = load_settings(None, {"engine": "sim:h200-llama8b", "trace": "t"})
    assert settings.simulated
    assert settings.model == "sim:h200-llama8b"
    named = load_settings(None, {"engine": "sim:./p.json", "trace": "t", "model": "m"})
    assert (named.simulated, named.model) == (True, "m")
    assert not load_settings(None, {"engine": "vllm", "trace": "t", "model": "m"}).simulated


@pytest.mark.parametrize("engine", ["sim:", "tgi", "", "SIM:x"])
def test_engines_that_there_are_not(engine: str) -> None:
    with pytest.raises(UsageError, match="--engine: must be vllm, or sim: and a profile"):
        load_settings(None, {"engine": engine, "trace": "t", "model": "m"})


def test_a_hint_points_to_the_help_of_the_command() -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(None, {**GIVEN, "engine_args": {"max_num_seqs": 0}}, command="calibrate")
    assert "`autotune calibrate --help`" in caught.value.hint


def test_deadlines_are_lengths_and_moments(config: Path) -> None:
    """YAML reads 22:30 as a number of base 60, and a date with a time as such."""
    config.write_text("timeout: 3600\nuntil: 22:30\n")
    settings = load_settings(config, GIVEN)
    assert (settings.timeout, settings.until) == ("3600", "22:30")
    config.write_text("until: 2026-12-01T07:00:00\n")
    assert load_settings(config, GIVEN).until == "2026-12-01T07:00:00"
    flags = {**GIVEN, "timeout": "8h", "until": "07:00"}
    assert load_settings(None, flags).until == "07:00"


@pytest.mark.parametrize("timeout", ["0", "0h", "-1h", "8 hours", "soon", "9000h", True])
def test_what_is_no_length_of_time_is_refused(timeout: object) -> None:
    assert refusal(timeout=timeout).message.startswith("--timeout: must be a length of time")


@pytest.mark.parametrize("until", ["25:00", "7", "2026-12-01", True, 1440])
def test_what_is_no_moment_is_refused(until: object) -> None:
    assert refusal(until=until).message.startswith("--until: must be a time of day")
