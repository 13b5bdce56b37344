from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.export import Export, render
from storage.errors import StorageError


def test_yaml_says_false_as_a_switch_of_its_own(export: Export) -> None:
    text = render(export, "yaml")
    assert [line for line in text.splitlines() if not line.startswith("# ")] == [
        "model: models/tiny",
        "max-num-batched-tokens: 2048",
        "max-num-seqs: 24",
        "no-enable-prefix-caching: true",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "true", "no", "null", "~", "1e3", "0x10", "8k", "2026-01-02", "", " a ", "a: b", "# x",
        "{a", "a\nb", "é\u2028\x1b", "@x", "'\"", 1e-7, 3, True, [1, 2], ["1", "yes"],
    ],
)  # fmt: skip
def test_yaml_keeps_the_type_of_a_value(value: object) -> None:
    export = Export("m", {}, {"some_name": value}, provenance={})
    assert yaml.safe_load(render(export, "yaml")) == {"model": "m", "some-name": value}


@given(study=st.text(), value=st.text())
def test_yaml_takes_any_text(study: str, value: str) -> None:
    engine_args = {"hf_overrides": {"text": value}}
    export = Export("m", {}, engine_args, provenance={study: study})
    loaded = yaml.safe_load(render(export, "yaml"))
    assert set(loaded) == {"model", "hf-overrides"}
    assert json.loads(loaded["hf-overrides"]) == {"text": value}


@pytest.mark.parametrize("value", ["--config", "-x", -0.5])
def test_yaml_refuses_what_the_loader_would_read_as_an_option(value: object) -> None:
    with pytest.raises(UsageError, match="some_name"):
        render(Export("m", {}, {"some_name": value}, provenance={}), "yaml")


def test_yaml_notes_what_the_default_says(export: Export) -> None:
    flags = {"disable_log_stats": {"flag": "--disable-log-stats", "negative": None}}
    facts = {name: {**fact, "default": "false"} for name, fact in flags.items()}
    quiet = replace(export, engine_args={"disable_log_stats": False})
    text = render(quiet, "yaml", flags=facts)
    assert yaml.safe_load(text) == {"model": "models/tiny"}
    assert "# left out: disable_log_stats=false" in text


def test_json_is_one_object(export: Export) -> None:
    assert json.loads(render(export, "json")) == {
        "model": "models/tiny",
        "candidate": {"max_num_batched_tokens": 2048, "max_num_seqs": 24},
        "metrics": {"ttft_p95": 712.34567, "tpot_p95": 31.5},
        "intervals": {"ttft_p95": [690.0, None]},
        "baseline": {"ttft_p95": 950.0, "tpot_p95": None},
        "verdict": {"code": "knee", "confidence": 0.93},
        "provenance": dict(export.provenance),
        "engine_args": dict(export.engine_args),
        "args": [
            "models/tiny", "--max-num-batched-tokens", "2048", "--max-num-seqs", "24",
            "--no-enable-prefix-caching",
        ],
    }  # fmt: skip


def test_a_model_without_a_name_is_asked_for(export: Export) -> None:
    unnamed = replace(export, model=None, model_words="any", notice="SIMULATED")
    *comments, _, _, _ = render(unnamed, "yaml").splitlines()
    assert comments[:2] == ["# NOTE: SIMULATED", "# use: vllm serve MODEL --config FILE.yaml"]
    assert comments[-1] == "# model: any"
    assert "model" not in yaml.safe_load(render(unnamed, "yaml"))
    found = json.loads(render(unnamed, "json"))
    assert found["model"] is None
    assert found["args"][0] == "--max-num-batched-tokens"


def test_json_holds_no_number_that_json_lacks(export: Export) -> None:
    with pytest.raises(StorageError, match="ttft_p95 is not a number"):
        render(replace(export, metrics={"ttft_p95": float("nan")}), "json")
    lost = replace(export, baseline={"ttft_max": float("inf")})
    assert json.loads(render(lost, "json"))["baseline"] == {"ttft_max": "inf"}
    bare = json.loads(render(replace(export, baseline=None, verdict=None), "json"))
    assert bare["baseline"] is None
    assert bare["verdict"] is None
