from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.simulated.profile import Profile, load_profile, shipped
from autotune.simulated.profile_schema import objection
from autotune.simulated.shape import kv_blocks

SHIPPED = load_profile("sim:cpu-tiny-llama").to_text()
Refusal = Callable[[str], str]
Data = dict[str, Any]


@pytest.fixture
def refusal(tmp_path: Path) -> Refusal:
    """What is said of a file with this text, after its name."""

    def said(text: str) -> str:
        path = tmp_path / "bad.json"
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(UsageError) as caught:
            load_profile(f"sim:{path}")
        assert caught.value.hint == "autotune calibrate --save makes one"
        return caught.value.message.removeprefix(f"{path} ")

    return said


def edited(place: str, value: Any) -> str:
    """A profile in which one key has another value, or is new."""
    data: Data = json.loads(SHIPPED)
    *outer, last = place.split(".")
    inner = data
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return json.dumps(data)


def without(place: str) -> str:
    data: Data = json.loads(SHIPPED)
    *outer, last = place.split(".")
    inner = data
    for name in outer:
        inner = inner[name]
    del inner[last]
    return json.dumps(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON: line 1, column 2"),
        (SHIPPED.replace('"start_s": 17.0,', '"start_s": 17.0'), "is no JSON: line 19, column 3"),
        ("\udcff", "is no JSON: it is not UTF-8"),
        ('{"version": NaN}', "is no JSON: NaN is no number of JSON"),
        ("[" * 100_000, "is no JSON: it is nested too deeply"),
        ('{"version": 1' + 5000 * "0" + "}", "is no JSON: a number has 5001 digits"),
        (
            SHIPPED.replace('"stalls": 0.0', '"run": 0.0'),
            "is no JSON: the key 'run' is there twice",
        ),
        ("[]", "is no profile of this autotune: it has no version"),
        ('{"version": 2}', "is no profile of this autotune: its version is 2"),
        ('{"version": 1.0}', "is no profile of this autotune: its version is 1.0"),
        ('{"version": true}', "is no profile of this autotune: its version is True"),
        ('{"version": 1}', "is no profile: it has no name"),
    ],
)
def test_files_that_are_no_profile(refusal: Refusal, content: str, message: str) -> None:
    assert refusal(content) == message


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("delivery_s", "soon", "delivery_s must be a number"),
        ("delivery_s", True, "delivery_s must be a number"),
        ("delivery_s", "0.1", "delivery_s must be a number"),
        ("delivery_s", 10**400, "a number has 401 digits"),
        ("delivery_s", 10**390, "delivery_s must be a number"),
        ("delivery_s", -1, "delivery_s must be at least 0"),
        ("start_s", 1e9, "start_s must be at most 86400"),
        ("name", "\ud800", "name must be a text"),
        ("name", "two\nlines", "name must be a text on one line that can be shown"),
        ("name", "", "name must have at least 1 character"),
        ("name", "x" * 5000, "name must have at most 100 characters"),
        ("noise", [], "noise must be an object with keys"),
        ("noise.run", 1, "noise.run must be less than 1"),
        ("noise.run", -0.1, "noise.run must be at least 0"),
        ("noise.stalls", 2.0, "noise.stalls must be at most 1"),
        ("noise.stall_factor", 0, "noise.stall_factor must be more than 0"),
        ("noise.much", 1, "it has an unknown key noise.much"),
        ("infos", {}, "it has an unknown key infos"),
        ("info", [], "info must be an object with keys"),
        ("info.kv_cache_tokens", None, "info.kv_cache_tokens must be a whole number"),
        ("info.kv_cache_tokens", 10**12, "info.kv_cache_tokens must be at most 1073741824"),
        (
            "info.kv_cache_tokens",
            8191,
            (
                "info.kv_cache_tokens (8191) is smaller than info.resolved.max_model_len (8192): "
                "no request of that length fits, and no such engine starts"
            ),
        ),
        ("info.work.source", "guess", "info.work.source must be 'vllm' or 'shape'"),
        ("info.capture_sizes", [8, 4], "info.capture_sizes must rise from each value to the next"),
        (
            "info.resolved.block_size",
            24,
            "info.resolved.block_size must be 1, 2, 4, 8 or a multiple of 16",
        ),
        (
            "info.resolved.max_num_batched_tokens",
            10**9,
            "info.resolved.max_num_batched_tokens must be at most 1048576",
        ),
        (
            "info.resolved.max_num_seqs",
            10**9,
            "info.resolved.max_num_seqs must be at most 1048576",
        ),
        (
            "info.resolved.max_model_len",
            True,
            "info.resolved.max_model_len must be a whole number",
        ),
        (
            "info.resolved.enable_prefix_caching",
            "no",
            "info.resolved.enable_prefix_caching must be true or false",
        ),
        (
            "info.resolved.pipeline_parallel_size",
            2.5,
            "info.resolved.pipeline_parallel_size must be a whole number",
        ),
        ("info.resolved.seed", 10**390, "info.resolved.seed must be from -1e+15 to 1e+15"),
        (
            "info.resolved.generation_config",
            "a\tb",
            "info.resolved.generation_config must be a text on one line that can be shown",
        ),
        ("step_times", {}, "it has no step_times.decode"),
        ("step_times.max_tokens", 0, "step_times.max_tokens must be at least 1"),
        ("step_times.host_s", -1, "step_times.host_s must be at least 0"),
        ("step_times.kv_token_s", 1e10, "step_times.kv_token_s must be less than 1"),
        ("step_times.error", -1, "step_times.error must be at least 0"),
        (
            "step_times.decode",
            {"x": [1, 2], "y": [0.1]},
            "step_times.decode has 2 values of x and 1 of y",
        ),
        (
            "step_times.decode",
            {"x": [2, 2], "y": [0.1, 0.1]},
            "step_times.decode.x must rise from each value to the next",
        ),
        (
            "step_times.mixed",
            {"x": [1, 2], "y": [0.2, 0.1]},
            "step_times.mixed.y must never fall: 0.1 comes after 0.2",
        ),
        (
            "step_times.mixed",
            {"x": [1, 2], "y": [-0.1, 0.1]},
            "step_times.mixed.y (1) must be more than 0",
        ),
        (
            "step_times.mixed",
            {"x": [], "y": []},
            "step_times.mixed.x must have at least 1 item",
        ),
        (
            "step_times.known.tokens",
            [1],
            "step_times.known.tokens must have at least 2 items",
        ),
    ],
)
def test_a_key_that_cannot_be_so_is_named(
    refusal: Refusal, place: str, value: Any, message: str
) -> None:
    said = refusal(edited(place, value))
    assert said.partition(": ")[2] == message or said.startswith(f"is no profile: {message}")


def test_infinity_is_named(refusal: Refusal) -> None:
    text = SHIPPED.replace('"start_s": 17.0', '"start_s": 1e999')
    assert refusal(text) == "is no profile: start_s must be a finite number"


def test_a_misspelt_key_says_which_was_meant(refusal: Refusal) -> None:
    text = SHIPPED.replace('"pair_s"', '"pairs_s"')
    assert refusal(text) == (
        "is no profile: it has an unknown key step_times.pairs_s (did you mean 'pair_s'?)"
    )


@pytest.mark.parametrize("place", ["info", "info.resolved.max_num_seqs", "measured_on.words"])
def test_a_key_that_is_missing_is_named(refusal: Refusal, place: str) -> None:
    assert refusal(without(place)) == f"is no profile: it has no {place}"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("pipeline_parallel_size", 2, "pipeline_parallel_size is more than 1"),
        ("data_parallel_size", 2, "data_parallel_size is more than 1"),
        ("decode_context_parallel_size", 2, "decode_context_parallel_size is more than 1"),
        ("prefill_schedule_interval", 3, "prefill_schedule_interval is more than 1"),
        (
            "long_prefill_token_threshold_adaptive",
            True,
            "long_prefill_token_threshold_adaptive is set",
        ),
        ("speculative_config", {"method": "ngram"}, "speculative decoding changes the schedule"),
        ("enable_lora", True, "LoRA changes the schedule"),
        ("kv_transfer_config", {}, "a KV connector changes the schedule"),
        ("runner", "pooling", "the model is run for pooling"),
        ("runner", [], "the model is run for []"),
    ],
)
def test_engines_that_the_simulated_scheduler_does_not_know(
    refusal: Refusal, name: str, value: Any, why: str
) -> None:
    assert refusal(edited(f"info.resolved.{name}", value)) == (
        f"is no profile: its engine cannot be simulated: info.resolved says that {why}"
    )


def test_a_cache_of_too_many_blocks(refusal: Refusal) -> None:
    data = json.loads(edited("info.resolved.block_size", 1))
    data["info"]["kv_cache_tokens"] = 2**30
    assert refusal(json.dumps(data)).endswith("makes more than 8388608 blocks")


@pytest.mark.parametrize("name", shipped())
def test_shipped_profiles_pass(name: str) -> None:
    assert objection(json.loads(load_profile(f"sim:{name}").to_text())) is None


_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([10**390, -1, 2**63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def _places(value: Any, place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [place]
    return [place, *(each for key in value for each in _places(value[key], (*place, key)))]


@given(st.sampled_from(_places(json.loads(SHIPPED))[1:]), _ANYTHING)
@settings(max_examples=60, deadline=None)
def test_any_value_in_any_place_is_taken_or_refused_in_words(
    place: tuple[str, ...], value: Any
) -> None:
    data = json.loads(edited(".".join(place), value))
    said = objection(data)
    if said is None:
        profile = Profile.from_json(data)
        assert profile.step_times.mixed_s[1:].min() > 0
        assert kv_blocks(profile.info) > 0
    else:
        assert not set(said.split()) & {"Input", "valid", "validation,", "expected"}
