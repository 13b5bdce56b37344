"""One real server with an exported file: proved, asked, replayed against, and gone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.serve import Server, serve_command
from autotune.engine.serve_report import Report
from autotune.export import Export, render
from autotune.settings import TuneSettings
from autotune.study.check_export import Exported, read_export
from autotune.study.check_serve import judged, observe
from autotune.study.session import read_traffic

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

MODEL = Path(__file__).resolve().parents[3] / "autotune" / "demo" / "tiny-llama"
LIMITS = {"max_num_batched_tokens": 512, "max_num_seqs": 12}
ENGINE_ARGS = {
    **LIMITS,
    "load_format": "dummy",
    "max_model_len": 2048,
    "kv_cache_memory_bytes": 64 * 2**20,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}
DROPPED = "enable-chunked-prefill: false\n"
"""What vLLM's loader does not pass on, and its default is true."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
}
TRACE = [
    {"timestamp": 0, "input_length": 40, "output_length": 6, "hash_ids": [1, 2, 3]},
    {"timestamp": 30.5, "input_length": 700, "output_length": 4, "hash_ids": [*range(1, 45)]},
    {"timestamp": 60, "input_length": 16, "output_length": 8, "hash_ids": [99]},
]


class Silent:
    """A follower who is told, and does not listen."""

    def progress(self, body: Mapping[str, Any]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("served") / "exported.yaml"
    export = Export(str(MODEL), LIMITS, ENGINE_ARGS, provenance={"study": "served"})
    path.write_text(render(export, "yaml") + DROPPED, encoding="utf-8")
    return read_export(path)


@pytest.fixture(scope="module")
def server(exported: Exported) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        log = Path(exported.source).with_name("served.log")
        options = ("--config", exported.source)
        with Server(serve_command(), options, log=log, start_timeout_s=300) as running:
            running.wait_until_ready()
            yield running


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TRACE), encoding="utf-8")
    return path


def test_every_exported_value_is_proved_and_a_dropped_one_is_caught(
    server: Server, exported: Exported
) -> None:
    _, info = server.get("/server_info?config_format=json")
    report = Report.of(info, server.output())
    assert report.kv_cache_tokens is not None
    proofs = report.prove({"model": exported.model, **exported.settings})
    assert {each.name: each.state for each in proofs} == {
        **dict.fromkeys(["model", *ENGINE_ARGS], "in_force"),
        "enable_chunked_prefill": "differs",
    }


def test_traffic_is_replayed_through_the_endpoint_engine(
    server: Server, exported: Exported, trace: Path
) -> None:
    settings = TuneSettings(model=str(MODEL), trace=str(trace), warmup_s=0.0)
    given = read_traffic(settings)
    seen = asyncio.run(observe(server, exported, given, settings, Silent()))
    served = judged(exported, seen, server)
    assert served.measurement is not None
    assert served.measurement.failed_requests == 0
    assert served.first_token_s is not None
    assert seen.replay.usage == "exact"
    assert seen.replay.samples.output_tokens.tolist() == [6, 4, 8]
    assert [each.name for each in served.differing] == ["enable_chunked_prefill"]


def test_the_openai_client_chats_and_streams(server: Server) -> None:
    from openai import OpenAI

    with OpenAI(base_url=server.base_url, api_key="EMPTY", max_retries=0) as client:
        chat = client.chat.completions.create(
            model=str(MODEL), messages=[{"role": "user", "content": "Hello"}], max_tokens=5
        )
        assert chat.choices[0].message.content
        stream = client.completions.create(
            model=str(MODEL),
            prompt="Once upon a time",
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]).strip()


def test_vllm_bench_replays_a_trace(server: Server, trace: Path, tmp_path: Path) -> None:
    base_url = server.base_url.removesuffix("/v1")
    command = [sys.executable, "-P", "-m", "autotune.engine.vllm_command", "bench", "serve"]
    command += ["--model", str(MODEL), "--base-url", base_url]
    command += ["--dataset-name", "timed_trace", "--dataset-path", str(trace)]
    command += ["--timed-trace-sec-multiplier", "0.001", "--num-prompts", str(len(TRACE))]
    command += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"]
    done = subprocess.run(
        command,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == len(TRACE)
    assert result["total_input_tokens"] == sum(int(str(row["input_length"])) for row in TRACE)
    assert result["total_output_tokens"] == sum(int(str(row["output_length"])) for row in TRACE)


def test_the_server_stops_when_asked_and_nothing_is_left(server: Server) -> None:
    running = server.processes()
    gone = server.stop()
    assert len(running) > 1
    assert gone.proved
    assert gone.status in ("ended with status 0", "ended by SIGTERM")
    assert [each for each in running if each.runs] == []
