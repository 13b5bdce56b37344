"""Captures of a real ``vllm serve`` against the record of a real OpenAI client.

Two servers, one after the other: the first records by its stat logger, the second by the
middleware. Before each stands ``autotune capture``, which records as well, and between the two a
tap that keeps what the server sent. Hundreds of requests are sent at random times, most of them
streams; some leave, some are refused, some want two answers. Compared are counts, lengths,
arrivals and first tokens of each recorder with those of the client, and the bytes of every
response on both sides of the proxy. Then what the proxy recorded of the first server is replayed
in two processes whose hashes have different seeds, for the share of prompt tokens that the prefix
cache serves, and read by ``vllm bench serve``.

    scripts/bench/served_capture [--json OUT.json] [--requests 300] [--rate 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import served_client as client

from autotune.demo import resolve_model
from autotune.engine.serve import free_port, serve_command, vllm_version
from autotune.traffic.model import TraceRequest
from autotune.traffic.trace import load_trace

MODEL = resolve_model("demo:tiny-llama")
ENGINE_ARGS = {
    "load-format": "dummy",
    "max-model-len": "2048",
    "max-num-batched-tokens": "2048",
    "max-num-seqs": "64",
    "kv-cache-memory-bytes": str(256 * 2**20),
    "enforce-eager": "true",
}
SERVER_ONLY = ("--enable-prompt-tokens-details", "--enable-request-id-headers")
MIDDLEWARE = ("--middleware", "autotune.traffic.capture.middleware.CaptureMiddleware")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
}
HASH_SEEDS = (1, 2)
NEAR_S = 5.0


@dataclass(frozen=True)
class Row:
    """A recorded request, at the time of the shared clock."""

    at_s: float
    request: TraceRequest


def options() -> list[str]:
    pairs = ((name, value) for name, value in ENGINE_ARGS.items() if name != "enforce-eager")
    return [*(part for name, value in pairs for part in (f"--{name}", value)), "--enforce-eager"]


@contextmanager
def server(extra: Sequence[str], folder: Path, log: Path) -> Iterator[int]:
    """Run ``vllm serve`` as a user would, recording into ``folder``; yield its port."""
    port = free_port()
    command = [*serve_command(), str(MODEL), *options(), *extra, "--port", str(port)]
    environ = {**os.environ, "AUTOTUNE_CAPTURE": str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1"], env=environ, stdout=output, stderr=output
        )
    try:
        wait_until_ready(process, port)
        yield port
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Return when the server takes requests, or end the bench if it does not live."""
    while process.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                return
        time.sleep(0.5)
    raise SystemExit("the server has ended; see its log")


@contextmanager
def proxy(upstream: str, folder: Path) -> Iterator[str]:
    """Run ``autotune capture`` within the block; yield the base URL for clients."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "autotune", "capture", "--upstream", upstream,
            "--listen", "127.0.0.1:0", "--output", str(folder), "--tokenizer", str(MODEL),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        for line in process.stdout or ():
            if found := re.search(r"listening on (\S+),", line):
                yield found[1]
                break
    finally:
        process.terminate()
        process.communicate()


def served(way: str, asks: list[client.Ask], folder: Path) -> dict[str, Any]:
    """Return what a server, its recorder, the proxy and the client say of the same requests."""
    own, before = folder / way, folder / f"{way}-proxy"
    extra = [*SERVER_ONLY, *(MIDDLEWARE if way == "middleware" else ())]
    with server(extra, own, folder / f"{way}.log") as port:
        seen, tapped = asyncio.run(_driven(port, before, asks))
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        bench = vllm_bench(port, before) if way == "middleware" else None
    return {
        "client": of_client(seen),
        "bytes": of_bytes(seen, tapped),
        "recorded": {
            way: compared(seen, own, by=way, stop=None if bench is None else len(asks)),
            "proxy": compared(seen, before, by="proxy"),
        },
        "prefix_cache": hits(metrics),
        **({} if bench is None else {"vllm_bench_serve": bench}),
    }


async def _driven(
    port: int, folder: Path, asks: list[client.Ask]
) -> tuple[list[client.Seen], Mapping[str, bytearray]]:
    async with client.Tap(port).open() as tap:
        with proxy(f"http://127.0.0.1:{tap.port}", folder) as base_url:
            seen = await client.drive(base_url, str(MODEL), asks)
            await asyncio.sleep(1.0)
    return seen, tap.bodies


def of_client(seen: Sequence[client.Seen]) -> dict[str, Any]:
    return {
        "requests": len(seen),
        "kinds": dict(Counter(each.ask.kind for each in seen)),
        "errors": dict(Counter(each.error for each in seen if each.error)),
        "prompt_tokens": sum(each.prompt_tokens or 0 for each in seen),
        "output_tokens": sum(each.output_tokens for each in seen),
    }


def of_bytes(seen: Sequence[client.Seen], tapped: Mapping[str, bytearray]) -> dict[str, int]:
    """Count responses whose bytes are the same on both sides of the proxy.

    Of a client that left, what it had is the beginning of what the server had sent.
    """
    found = Counter[str]()
    for each in seen:
        there = tapped[f"ask-{each.ask.number}"]
        left = each.ask.kind == "cancelled"
        same = there.startswith(each.body) if left else there == each.body
        found["beginning_of_a_cancelled" if left else "identical"] += same
        found["different"] += not same
        found["bytes"] += len(each.body)
    return dict(found)


def rows_of(folder: Path) -> list[Row]:
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        trace = load_trace(path)
        begun_s = datetime.fromisoformat(trace.meta.captured_at or "").timestamp()
        rows += [Row(begun_s + each.timestamp_ms / 1e3, each) for each in trace.requests]
    return rows


def compared(
    seen: Sequence[client.Seen], folder: Path, *, by: str, stop: int | None = None
) -> dict[str, Any]:
    """Compare a recording with the client's record, request by request."""
    rows = rows_of(folder)
    if stop is not None:
        last_s = max(each.sent_s for each in seen) + 1.0
        rows = [row for row in rows if row.at_s < last_s]
    left = list(rows)
    apart_ms, first_ms, missing = [], [], Counter[str]()
    # Those of which the client knows least choose last.
    for each in sorted(seen, key=lambda one: (one.ask.kind == "cancelled", one.sent_s)):
        for _ in range(2 if each.ask.kind == "two" else 1):
            row = _nearest(each, left)
            if row is None:
                missing[each.ask.kind] += 1
                continue
            left.remove(row)
            apart_ms.append((row.at_s - each.sent_s) * 1e3)
            if each.ttft_ms is not None and row.request.ttft_ms is not None:
                first_ms.append(each.ttft_ms - row.request.ttft_ms)
    recordings = [load_trace(path).meta for path in folder.glob("*.jsonl")]
    return {
        "by": by,
        "rows": len(rows),
        "recording": [asdict(meta.recording) for meta in recordings if meta.recording],
        "gaps": sum(len(meta.gaps) for meta in recordings),
        "matched_with_equal_lengths": len(apart_ms),
        "of_the_client_without_row": dict(missing),
        "rows_of_nobody": len(left),
        "arrival_ms": spread(apart_ms),
        "client_ttft_minus_recorded_ms": spread(first_ms),
    }


def _nearest(seen: client.Seen, rows: Sequence[Row]) -> Row | None:
    """Return the row that may be the request: the nearest of the same lengths."""
    near = [row for row in rows if abs(row.at_s - seen.sent_s) < NEAR_S]
    fit = [row for row in near if _alike(seen, row.request)]
    return min(fit, key=lambda row: abs(row.at_s - seen.sent_s), default=None)


def _alike(seen: client.Seen, row: TraceRequest) -> bool:
    if seen.ask.kind == "cancelled":
        # Nobody told the client the length of the prompt, and more may have been on the way,
        # perhaps all of it.
        whole = row.output_length == seen.ask.output_tokens
        return whole or (row.outcome == "cancelled" and row.output_length >= seen.output_tokens)
    answers = 2 if seen.ask.kind == "two" else 1
    wanted = (seen.prompt_tokens, seen.output_tokens // answers)
    return (row.input_length, row.output_length) == wanted


def spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p99 = np.percentile(values, (50, 99))
    found = {"min": min(values), "p50": p50, "p99": p99, "max": max(values)}
    return {name: round(float(value), 3) for name, value in found.items()}


def hits(metrics: str) -> dict[str, float]:
    """Return what the server says of its prefix cache."""
    found = {}
    for name in ("queries", "hits"):
        lines = re.findall(rf"^vllm:prefix_cache_{name}_total{{.*}} (\S+)$", metrics, re.M)
        found[name] = sum(map(float, lines))
    return {**found, "hit_rate": round(found["hits"] / found["queries"], 4)}


def replayed(trace: Path, hash_seed: int, folder: Path) -> dict[str, Any]:
    """Replay in a process of its own, which hashes by ``hash_seed``."""
    engine = [f"{name.replace('-', '_')}={value}" for name, value in ENGINE_ARGS.items()]
    command = [sys.executable, "-m", "autotune", "replay", "--model", str(MODEL)]
    command += ["--trace", str(trace), "--format", "json", "--log-folder", str(folder)]
    command += [part for each in engine for part in ("--engine-arg", each)]
    environ = {**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout)
    keys = ("num_prompts", "completed", "failed", "total_input_tokens", "total_output_tokens")
    return {
        "hash_seed": hash_seed,
        "prefix_hit_rate": round(result["prefix_hit_rate"], 4),
        **{key: result[key] for key in keys},
    }


def vllm_bench(port: int, folder: Path) -> dict[str, Any]:
    """Have ``vllm bench serve`` read and send what was recorded."""
    (trace,) = folder.glob("*.jsonl")
    command = [sys.executable, "-P", "-m", "autotune.engine.vllm_command", "bench", "serve"]
    flags = [
        "--model", str(MODEL), "--base-url", f"http://127.0.0.1:{port}",
        "--dataset-name", "timed_trace", "--dataset-path", str(trace),
        "--timed-trace-sec-multiplier", "0.001", "--timed-trace-chunk-hash-size", "16",
        "--num-prompts", "100000",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        saved = ["--save-result", "--result-dir", name, "--result-filename", "result.json"]
        environ = {**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            [*command, *flags, *saved], env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        result = json.loads((Path(name) / "result.json").read_text(encoding="utf-8"))
    rows = rows_of(folder)
    return {
        "flags": " ".join(flags[4:6] + flags[8:]),
        "rows": len(rows),
        "completed": result["completed"],
        "input_tokens": [result["total_input_tokens"], sum(r.request.input_length for r in rows)],
        "output_tokens": [
            result["total_output_tokens"],
            sum(r.request.output_length for r in rows),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    given = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    asks = client.workload(given.requests, given.rate, seed=6)
    row: dict[str, Any] = {
        "vllm": vllm_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for way in ("stat-logger", "middleware"):
            row[way] = served(way, asks, folder)
        (trace,) = (folder / "stat-logger-proxy").glob("*.jsonl")
        row["replayed"] = [replayed(trace, seed, folder / f"logs-{seed}") for seed in HASH_SEEDS]
    text = json.dumps(row, indent=2)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
