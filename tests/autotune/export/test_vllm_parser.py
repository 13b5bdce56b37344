"""Exports read by vLLM's own parser; no engine is started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
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


def ask_vllm(*words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.autotune.export.vllm_parser", *words],
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def flags() -> FlagFacts:
    return ask_vllm("flags")  # type: ignore[return-value]


@pytest.fixture(scope="module")
def export() -> Export:
    return Export(
        MODEL,
        candidate={"max_num_batched_tokens": 2048},
        engine_args=ENGINE_ARGS | IMPLIED | LEFT_OUT,
        provenance={"study": "hostile\nmax-num-seqs: 1\u2028x: {"},
    )


@pytest.fixture(scope="module", params=["args", "yaml", "json", "env", "yaml without facts"])
def parsed(
    request: pytest.FixtureRequest,
    export: Export,
    flags: FlagFacts,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("export")
    if request.param == "args":
        lines = render(export, "args", flags=flags).splitlines()
        words = shlex.split(lines[-1])
        assert words[0] == "vllm"
        return ask_vllm("parse", *words[1:])
    if request.param == "json":
        words = json.loads(render(export, "json", flags=flags))["args"]
        return ask_vllm("parse", "serve", *words)
    if request.param == "env":
        file = folder / "export.env"
        file.write_text(render(export, "env", flags=flags))
        script = f'. {file}; eval "printf \'%s\\0\' \\"\\$AUTOTUNE_MODEL\\" $AUTOTUNE_VLLM_ARGS"'
        output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        return ask_vllm("parse", "serve", *output.stdout.split("\0")[:-1])
    file = folder / "export.yaml"
    if request.param == "yaml":
        file.write_text(render(export, "yaml", flags=flags))
    else:
        known = Export(MODEL, {}, ENGINE_ARGS, provenance={})
        file.write_text(render(known, "yaml", flags=None))
    return ask_vllm("parse", "serve", "--config", str(file))


def test_every_value_comes_back(parsed: dict[str, object]) -> None:
    expected: dict[str, object] = {"model": MODEL, **ENGINE_ARGS, **IMPLIED, **LEFT_OUT}
    got = {name: parsed[name] for name in expected}
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
