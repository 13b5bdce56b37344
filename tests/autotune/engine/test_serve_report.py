from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from autotune.engine.serve_report import ProofState, Report, agrees

CONFIG: Mapping[str, Any] = {
    "model_config": {
        "model": "m",
        "dtype": "torch.bfloat16",
        "max_model_len": 8192,
        "enforce_eager": True,
        "multimodal_config": {"mm_encoder_only": False},
    },
    "cache_config": {
        "enable_prefix_caching": True,
        "kv_cache_memory_bytes": 67108864,
        "kv_cache_size_tokens": 65536,
        "cache_dtype": "fp8",
        "block_size": 16,
    },
    "scheduler_config": {"max_num_batched_tokens": 1024, "max_num_seqs": 32, "policy": "fcfs"},
    "load_config": {"load_format": "dummy"},
    "compilation_config": {"mode": 0, "cudagraph_capture_sizes": [1, 2, 4]},
    "speculative_config": None,
    "optimization_level": 2,
}
READ = {"max_num_seqs": 32, "disable_log_stats": True, "log_config_file": "a.json", "seed": None}
LOG = f"(APIServer pid=1) INFO 11-30 20:15:06 [api_utils.py:286] non-default args: {READ}\nmore\n"


@pytest.mark.parametrize(
    ("name", "wanted", "state"),
    [
        ("max_num_batched_tokens", 1024, "in_force"),
        ("max_num_seqs", 64, "differs"),
        ("enable_prefix_caching", False, "differs"),
        ("enforce_eager", True, "in_force"),
        ("dtype", "bfloat16", "in_force"),
        ("dtype", "auto", "resolved"),
        ("dtype", "float16", "differs"),
        ("max_model_len", -1, "resolved"),
        ("max_model_len", None, "differs"),
        ("kv_cache_dtype", "fp8", "in_force"),
        ("scheduling_policy", "priority", "differs"),
        ("mm_encoder_only", False, "in_force"),
        ("optimization_level", 2, "in_force"),
        ("compilation_config", {"cudagraph_capture_sizes": [1, 2, 4]}, "in_force"),
        ("compilation_config", {"cudagraph_capture_sizes": [1, 2]}, "differs"),
        ("compilation_config", {"mode": "NONE"}, "not_provable"),
        ("compilation_config", {"unheard_of": 1}, "not_provable"),
        ("speculative_config", {"method": "ngram"}, "not_provable"),
        ("disable_log_stats", True, "not_provable"),
        ("log_config_file", "b.json", "differs"),
        ("unheard_of", 3, "not_provable"),
    ],
)
def test_a_value_is_proved_by_the_resolved_configuration_alone(
    name: str, wanted: object, state: ProofState
) -> None:
    report = Report.of(json.dumps({"vllm_config": CONFIG}), LOG)
    (proof,) = report.prove({name: wanted})
    assert (proof.name, proof.wanted, proof.state) == (name, wanted, state)


def test_a_proof_says_where_it_was_found() -> None:
    report = Report.of(json.dumps({"vllm_config": CONFIG}), LOG)
    known, read, unknown = report.prove(
        {"max_num_seqs": 32, "disable_log_stats": True, "unheard_of": 1}
    )
    assert (known.found, known.where) == (32, "/server_info scheduler_config.max_num_seqs")
    assert read.found is True
    assert "does not report what came of it" in read.where
    assert (unknown.found, unknown.where) == (None, "no report of the server has it")
    assert report.kv_cache_tokens == 65536


def test_two_places_that_disagree_prove_nothing() -> None:
    config = {"a_config": {"seed": 1}, "b_config": {"seed": 2}}
    report = Report.of(json.dumps({"vllm_config": config}), "")
    assert report.prove({"seed": 1})[0].state == "not_provable"


@pytest.mark.parametrize("info", ["", "<html>", "[]", '{"vllm_config": "text"}', "[" * 100_000])
def test_without_a_report_nothing_is_proved(info: str) -> None:
    report = Report.of(info, "non-default args: {'compilation_config': Config(level=3)}\n")
    assert report.read is None
    assert report.kv_cache_tokens is None
    assert report.prove({"max_num_seqs": 32})[0].state == "not_provable"


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (False, None, None),
        (None, None, True),
        ("FLASH_ATTN", "flash_attn", True),
        ("8k", 8192, None),
        ([1], [1, 2], False),
        ([], [], True),
        ({}, {"a": 1}, True),
    ],
)
def test_values_agree_by_what_they_mean(wanted: object, found: object, same: bool | None) -> None:
    assert agrees(wanted, found) is same
