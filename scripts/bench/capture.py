"""What a capture adds to first tokens and to gaps between tokens, and what it costs in throughput.

A server that makes nothing up but the time between tokens streams 2,000 tokens a second over 64
connections: directly, through ``autotune capture``, and with the middleware in it. Server, proxy
and client are processes of their own on one machine. The three take turns in rounds, in another
order each time, and a difference is that of the percentiles of all rounds together. How long the
process computes that the client talks to, be it server, proxy or server with middleware, is given
too: other work on the machine lengthens latencies, but hardly that.

    scripts/bench/capture [--json OUT.json] [--rounds 6]
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import uvicorn

from autotune.traffic.capture.middleware import CaptureMiddleware
from autotune.traffic.capture.observe import Receive, Scope, Send
from autotune.traffic.capture.proxy import Address, bound
from autotune.traffic.trace import load_trace

CONNECTIONS = 64
RATE = 2000.0
GAP_S = CONNECTIONS / RATE
TOKENS = 32
REQUESTS = 3
"""Of each connection in each turn."""

PROMPT_CHARACTERS = 8000
PERCENTILES = (50, 99)
ROOT = Path(__file__).resolve().parents[2]


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request with tokens at a steady pace."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    begun_s = time.perf_counter()
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(1, TOKENS + 1):
        await asyncio.sleep(begun_s + number * GAP_S - time.perf_counter())
        row = {"id": "x", "choices": [{"index": 0, "delta": {"content": f"word{number} "}}]}
        data = b"data: " + json.dumps(row).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": True})
    usage = {"prompt_tokens": PROMPT_CHARACTERS // 4, "completion_tokens": TOKENS}
    end = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    end += b"data: [DONE]\n\n"
    await send({"type": "http.response.body", "body": end, "more_body": False})


def serve() -> None:
    """Be the server; the middleware does nothing where AUTOTUNE_CAPTURE is not set."""
    listener = bound(Address("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        CaptureMiddleware(stream) if "AUTOTUNE_CAPTURE" in os.environ else stream,
        log_level="warning",
        access_log=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def started(arguments: list[str], environ: Mapping[str, str], address: str) -> Iterator[Arm]:
    """Run a process within the block; give the way to the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for line in process.stdout or ():
            if found := re.search(address, line):
                yield Arm(found[1], process.pid)
                break
    finally:
        process.terminate()
        process.communicate()


@dataclass
class Arm:
    """One way to the server, and what was measured on it."""

    url: str
    pid: int
    cpu_s: float = 0.0
    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)


async def ask(session: aiohttp.ClientSession, arm: Arm, body: bytes) -> int:
    """Read one stream; return its tokens."""
    begun_s = time.perf_counter()
    tokens, before_s = 0, begun_s
    url = f"{arm.url}/v1/chat/completions"
    async with session.post(url, data=body) as response:
        async for line in response.content:
            if b'"delta"' not in line:
                continue
            now_s = time.perf_counter()
            (arm.itl_ms if tokens else arm.ttft_ms).append((now_s - before_s) * 1e3)
            before_s = now_s
            tokens += 1
    return tokens


async def turn(arm: Arm, seed: int) -> None:
    """Have all connections stream at once, begun one after the other within a stream."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def connection(number: int) -> int:
            await asyncio.sleep(number / CONNECTIONS * GAP_S * TOKENS)
            bodies = (body_of(seed, number, each) for each in range(REQUESTS))
            return sum([await ask(session, arm, body) for body in bodies])

        begun_s, busy_s = time.perf_counter(), cpu_s(arm.pid)
        tokens = await asyncio.gather(*(connection(each) for each in range(CONNECTIONS)))
        arm.tokens_per_s.append(sum(tokens) / (time.perf_counter() - begun_s))
        arm.cpu_s += cpu_s(arm.pid) - busy_s


def cpu_s(pid: int) -> float:
    """Return how long a process has computed."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def body_of(seed: int, connection: int, number: int) -> bytes:
    text = f"{'system ' * 300}{seed} {connection} {number} ".ljust(PROMPT_CHARACTERS, "x")
    row = {"model": "stub", "stream": True, "messages": [{"role": "user", "content": text}]}
    return json.dumps(row).encode()


def measure(arms: Mapping[str, Arm], rounds: int) -> None:
    order = np.random.default_rng(1)
    for number in range(-1, rounds):
        names = list(arms)
        for place in order.permutation(len(names)):
            asyncio.run(turn(arms[names[place]], number))
        if number == -1:
            # The first round opens files and connections, and counts for nothing.
            for arm in arms.values():
                arm.ttft_ms, arm.itl_ms, arm.tokens_per_s, arm.cpu_s = [], [], [], 0.0


def percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(values, p)), 3) for p in PERCENTILES}


def added(ours: list[float], theirs: list[float]) -> dict[str, float]:
    mine, other = percentiles(ours), percentiles(theirs)
    return {name: round(mine[name] - other[name], 3) for name in mine}


def result(arms: Mapping[str, Arm], recorded: Mapping[str, int], rounds: int) -> dict[str, Any]:
    none = arms["none"]
    row: dict[str, Any] = {
        "connections": CONNECTIONS,
        "tokens_per_s_wanted": RATE,
        "requests_per_arm": rounds * CONNECTIONS * REQUESTS,
        "rounds": rounds,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    for name, arm in arms.items():
        row[name] = {
            "ttft_ms": percentiles(arm.ttft_ms),
            "itl_ms": percentiles(arm.itl_ms),
            "tokens_per_s": round(float(np.mean(arm.tokens_per_s)), 1),
            "cpu_ms_per_token": round(arm.cpu_s * 1e3 / len(arm.itl_ms + arm.ttft_ms), 4),
        }
        if name != "none":
            row[name] |= {
                "added_ttft_ms": added(arm.ttft_ms, none.ttft_ms),
                "added_itl_ms": added(arm.itl_ms, none.itl_ms),
                "throughput_ratio": round(
                    float(np.mean(arm.tokens_per_s) / np.mean(none.tokens_per_s)), 4
                ),
                "recorded": recorded[name],
            }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    recorded: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folders = {arm: Path(name) / arm for arm in ("proxy", "middleware")}
        with ExitStack() as stack:
            server = ["scripts/bench/capture.py", "--serve"]
            found = r"(http://127\.0\.0\.1:\d+)"
            environ = {"AUTOTUNE_CAPTURE": str(folders["middleware"])}
            plain = stack.enter_context(started(server, {}, f"^{found}"))
            proxy = [
                "-m", "autotune", "capture", "--upstream", plain.url, "--listen", "127.0.0.1:0",
                "--output", str(folders["proxy"]),
            ]  # fmt: skip
            arms = {
                "none": plain,
                "proxy": stack.enter_context(started(proxy, {}, f"listening on {found}")),
                "middleware": stack.enter_context(started(server, environ, f"^{found}")),
            }
            measure(arms, given.rounds)
        for arm, folder in folders.items():
            recorded[arm] = sum(load_trace(p).meta.requests for p in folder.glob("*.jsonl"))
    text = json.dumps(result(arms, recorded, given.rounds), indent=2)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
