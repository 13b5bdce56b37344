from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import UsageError
from autotune.forecast.sweep import Calibrated
from autotune.simulated.profile import (
    OF_THE_HOST,
    Noise,
    Profile,
    load_profile,
    neutral,
    profile_of,
    shipped,
    spelt,
)
from objectives.steps import COLUMNS, Steps
from tests.autotune.forecast.builders import plan

SHIPPED = ("cpu-tiny-llama", "h200-llama8b")


def sweep_of(sizes: list[int]) -> Calibrated:
    """Prompts of these sizes, 1 ms and 1 ms for each 8 tokens; every third is 10 % slower."""
    tokens = np.array(sizes, dtype=np.int64)
    takes_s = (0.001 + tokens / 8000) * np.where(np.arange(tokens.size) % 3 == 0, 1.1, 1.0)
    steps = Steps.from_rows(np.zeros((tokens.size, len(COLUMNS))))
    begun_s = np.cumsum(takes_s) - takes_s
    steps = replace(
        steps,
        begun_s=begun_s,
        planned_s=begun_s,
        done_s=begun_s + takes_s,
        prefill_tokens=tokens,
        requests=np.ones(tokens.size, dtype=np.int64),
        prefill_pairs=tokens * (tokens + 1) // 2,
    )
    return Calibrated.of(steps, plan=plan(), whole=True, capture_sizes=(), work=None)


def made(calibrated: Calibrated) -> Profile:
    info = load_profile("sim:cpu-tiny-llama").info
    named = {**info.resolved, "tokenizer": "/home/me/model", "_rank": 0}
    info = replace(info, model="/home/me/model", device_uuids=("GPU-1",), resolved=named)
    return profile_of(calibrated, info, name="mine", model="model", start_s=3.0, date="2026-11-30")


def test_those_that_are_shipped() -> None:
    assert shipped() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_says_what_it_was_measured_on(name: str) -> None:
    profile = load_profile(f"sim:{name}")
    assert profile.name == name
    origin = profile.measured_on
    assert profile.info.device == origin.device
    assert all((origin.model, origin.date, origin.words, origin.vllm_version))
    assert profile.info.kv_cache_tokens is not None
    assert profile.start_s > 1
    assert 0 < profile.step_times.error < 0.1
    assert 0 < profile.noise.run < 0.1


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_names_nothing_of_a_machine(name: str) -> None:
    profile = load_profile(f"sim:{name}")
    assert profile.info.device_uuids == ()
    assert not OF_THE_HOST & set(profile.info.resolved)
    assert "/" not in profile.to_text().replace("tokens/s", "").replace("requests/s", "")


def test_text_and_back(tmp_path: Path) -> None:
    profile = load_profile("sim:h200-llama8b")
    path = tmp_path / "copy.json"
    path.write_text(profile.to_text())
    again = load_profile(f"sim:{path}")
    assert again.to_text() == profile.to_text()
    assert again.identity == profile.identity
    np.testing.assert_array_equal(again.step_times.mixed_s, profile.step_times.mixed_s)


def test_another_pace_is_another_identity() -> None:
    profile = load_profile("sim:cpu-tiny-llama")
    other = replace(profile, noise=Noise())
    assert profile.identity.startswith("sim:cpu-tiny-llama@")
    assert other.identity.startswith("sim:cpu-tiny-llama@")
    assert other.identity != profile.identity


def test_people_can_read_it() -> None:
    lines = load_profile("sim:cpu-tiny-llama").to_text().splitlines()
    assert lines[:3] == ["{", '  "version": 1,', '  "name": "cpu-tiny-llama",']
    assert any(line.startswith('      "x": [') for line in lines)


def test_a_profile_of_a_sweep() -> None:
    profile = made(sweep_of([64, 64, 64, 256, 256, 256, 1024, 1024, 1024]))
    assert profile.name == "mine"
    assert profile.measured_on.words == "9 steps of a calibration sweep, one at a time"
    assert (profile.info.model, profile.info.device_uuids) == ("model", ())
    assert profile.noise.run == 0
    assert profile.delivery_s == 0
    assert profile.step_times.mixed_s[256] == pytest.approx(0.033, rel=0.1)
    assert profile.step_times.max_tokens == profile.info.resolved["max_num_batched_tokens"]


def test_what_was_repeated_shows_by_what_steps_vary() -> None:
    spread = [64] * 3 + [256] * 3 + [1024] * 3
    assert made(sweep_of([64, 256, 1024])).noise.step == 0
    assert made(sweep_of(sorted(spread, key=lambda size: -size))).noise.step >= 0


def test_what_names_the_machine_is_left_out() -> None:
    info = made(sweep_of([64, 256])).info
    assert not {"tokenizer", "_rank", "model"} & set(info.resolved)
    assert neutral(info, "model") == info


@pytest.mark.parametrize(
    ("engine", "message", "hint"),
    [
        ("sim:h200-llama8", "no profile 'h200-llama8' is shipped", "h200-llama8b"),
        ("sim:mine", "no profile 'mine' is shipped", "cpu-tiny-llama, h200-llama8b"),
        ("sim:./none.json", "cannot read the profile none.json: No such file", "--save"),
    ],
)
def test_what_is_not_there(engine: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(engine)
    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("path", "engine"),
    [("mine.json", "sim:mine.json"), ("mine", "sim:./mine"), ("a/mine", "sim:a/mine")],
)
def test_how_a_file_is_named(path: str, engine: str) -> None:
    assert spelt(Path(path)) == engine
