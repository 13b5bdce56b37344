from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.export import Export, render

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

MODEL = Path(__file__).resolve().parents[3] / "autotune" / "demo" / "tiny-llama"
VLLM = [sys.executable, str(Path(__file__).with_name("vllm_command.py"))]
LIMITS = {"max_num_batched_tokens": 512, "max_num_seqs": 12}
ENGINE_ARGS = {
    **LIMITS,
    "load_format": "dummy",
    "max_model_len": 2048,
    "kv_cache_memory_bytes": 64 * 2**20,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # Opens /server_info, which tells the resolved limits.
    "NO_PROXY": "127.0.0.1",
}
TRACE = [
    {"timestamp": 0, "input_length": 40, "output_length": 6, "hash_ids": [1, 2, 3]},
    {"timestamp": 30.5, "input_length": 700, "output_length": 4, "hash_ids": [*range(1, 45)]},
    {"timestamp": 60, "input_length": 16, "output_length": 8, "hash_ids": [99]},
]


@dataclass(frozen=True, slots=True)
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:  # noqa: S310
            text: str = answer.read().decode()
            return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(server: Server, *, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(timeout=0.5)
            break
        with suppress(OSError):
            server.get("/health")
            return
    pytest.fail(f"vllm serve did not become ready:\n{server.log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    config, log = folder / "exported.yaml", folder / "server.log"
    export = Export(str(MODEL), LIMITS, ENGINE_ARGS, provenance={"study": "served"})
    config.write_text(render(export, "yaml"), encoding="utf-8")
    port = free_port()
    command = [*VLLM, "serve", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )
    try:
        running = Server(process, port, log)
        wait_until_ready(running, timeout_s=150)
        yield running
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


def test_the_server_runs_with_the_exported_limits(server: Server) -> None:
    config = json.loads(server.get("/server_info?config_format=json"))["vllm_config"]
    scheduler = config["scheduler_config"]
    assert {name: scheduler[name] for name in LIMITS} == LIMITS
    assert config["cache_config"]["enable_prefix_caching"] is False
    assert config["model_config"]["max_model_len"] == ENGINE_ARGS["max_model_len"]


def test_the_openai_client_chats_and_streams(server: Server) -> None:
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", max_retries=0) as client:
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


def test_vllm_bench_replays_a_trace(server: Server, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in TRACE), encoding="utf-8")
    command = [*VLLM, "bench", "serve", "--model", str(MODEL), "--base-url", server.url]
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


def test_the_server_stops_when_asked(server: Server) -> None:
    server.process.terminate()
    assert server.process.wait(timeout=60) in (0, -signal.SIGTERM)
