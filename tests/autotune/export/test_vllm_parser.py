"""Exports read by vLLM's own parser; no engine is started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.export import Export, FlagFacts, render

pytestmark = pytest.mark.engine

MODEL = "models/tiny llama's #1"
ENGINE_ARGS: dict[str, object] = {
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 24,
    "max_model_len": -1,
    "kv_cache_memory_bytes": 64 * 2**20,
    "gpu_memory_utilization": 0.85,
    "long_prefill_token_threshold": 512,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "async_scheduling": False,
    "enforce_eager": True,
    "disable_log_stats": True,
    "trust_remote_code": False,
    "cudagraph_capture_sizes": [1, 2, 4],
    "served_model_name": ["a b", "it's", "yes"],
    "ignore_patterns": ["*.pth", "original/**/*"],
    "compilation_config": {"mode": 0, "cudagraph_mode": "NONE", "splitting_ops": ["a::b"]},
    "additional_config": {"on": False, "none": None, "deep": {"text": "# 8k 'é' \"\n", "x": 1e-5}},
    "hf_overrides": {"rope_theta": 1e6, "architectures": ["LlamaForCausalLM"]},
    "limit_mm_per_prompt": {"image": 0},
    "scheduling_policy": "priority",
    "load_format": "dummy",
    "dtype": "bfloat16",
    "seed": 7,
    "revision": "true",
    "code_revision": "1e3",
    "tokenizer_revision": "null",
    "download_dir": "/tmp/$HOME `id`; rm -rf 'x' & #\\",
}
IMPLIED = {"aggregate_engine_logging": False, "kv_cache_dtype_skip_layers": []}
LEFT_OUT = {"quantization": None}


Parsed = dict[str, dict[str, object]]


def ask_vllm(question: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.autotune.export.vllm_parser"],
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
        cwd=Path(__file__).resolve().parents[3],
        input=question,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def flags() -> FlagFacts:
    facts: FlagFacts = json.loads(ask_vllm(""))
    return facts


@pytest.fixture(scope="module")
def export() -> Export:
    return Export(
        MODEL,
        candidate={"max_num_batched_tokens": 2048},
        engine_args=ENGINE_ARGS | IMPLIED | LEFT_OUT,
        provenance={"study": "hostile\nmax-num-seqs: 1\u2028x: {"},
    )


def source_env(text: str, file: Path) -> list[str]:
    """Return the words that a shell makes of the exported environment."""
    file.write_text(text, encoding="utf-8")
    show = f'. {file}; eval "printf \'%s\\0\' \\"\\$AUTOTUNE_MODEL\\" $AUTOTUNE_VLLM_ARGS"'
    done = subprocess.run(["sh", "-c", show], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.fixture(scope="module")
def parsed(export: Export, flags: FlagFacts, tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    folder = tmp_path_factory.mktemp("export")
    with_facts, by_rule = folder / "facts.yaml", folder / "rule.yaml"
    with_facts.write_text(render(export, "yaml", flags=flags), encoding="utf-8")
    by_rule.write_text(render(replace(export, engine_args=ENGINE_ARGS), "yaml"), encoding="utf-8")
    lines = {
        "args": shlex.split(render(export, "args", flags=flags).splitlines()[-1])[1:],
        "yaml": ["serve", "--config", str(with_facts)],
        "yaml without facts": ["serve", "--config", str(by_rule)],
        "json": ["serve", *json.loads(render(export, "json", flags=flags))["args"]],
        "env": ["serve", *source_env(render(export, "env", flags=flags), folder / "export.env")],
    }
    answers = json.loads(ask_vllm(json.dumps(list(lines.values()))))
    return dict(zip(lines, answers, strict=True))


@pytest.mark.parametrize("form", ["args", "yaml", "yaml without facts", "json", "env"])
def test_every_value_comes_back(parsed: Parsed, form: str) -> None:
    expected: dict[str, object] = {"model": MODEL, **ENGINE_ARGS, **IMPLIED, **LEFT_OUT}
    got = {name: parsed[form][name] for name in expected}
    config = got["compilation_config"]
    assert isinstance(config, dict)
    got["compilation_config"] = {
        "mode": int(str(config["mode"])),
        "cudagraph_mode": str(config["cudagraph_mode"]).rpartition(".")[2],
        "splitting_ops": config["splitting_ops"],
    }
    assert got == expected


def test_switches_have_their_negative_form(flags: FlagFacts) -> None:
    assert flags["enable_prefix_caching"] == {
        "flag": "--enable-prefix-caching",
        "negative": "--no-enable-prefix-caching",
        "default": "null",
    }
    assert flags["disable_log_stats"] == {
        "flag": "--disable-log-stats",
        "negative": None,
        "default": "false",
    }
    assert flags["max_num_seqs"]["negative"] is None


def test_vllm_follows_its_naming_rule(flags: FlagFacts) -> None:
    by_rule = {name: "--" + name.replace("_", "-") for name in flags}
    differing = {name for name, fact in flags.items() if fact["flag"] not in (None, by_rule[name])}
    assert differing == set()


def test_an_argument_without_an_option_is_refused(flags: FlagFacts) -> None:
    export = Export("m", {}, {"enable_mm_processor_stats": True}, provenance={})
    with pytest.raises(UsageError, match="enable_mm_processor_stats"):
        render(export, "yaml", flags=flags)
