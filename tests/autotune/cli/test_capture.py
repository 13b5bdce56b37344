"""``autotune capture`` as a process of its own: signals, crashes, and two in one folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import httpx
import pytest

from autotune.cli.main import app
from autotune.errors import LeaseHeld, UsageError
from autotune.traffic.capture.opening import CaptureOptions, opened_recorder
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.capture.stub import Stub, served

pytestmark = pytest.mark.wire

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4}


async def started(upstream: str, folder: Path) -> tuple[Process, str]:
    """Start a capture; return it and its address once it listens, or what it said instead."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "autotune", "capture", "--upstream", upstream,
        "--listen", "127.0.0.1:0", "--output", str(folder),
        stdout=PIPE, stderr=PIPE, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    while line := (await process.stderr.readline()).decode():
        said += line
        if found := re.search(r"listening on (\S+)/v1", line):
            return process, found[1]
    return process, said


def recorded(folder: Path) -> int:
    """Return how many requests are in the recording, below its header."""
    return sum(part.read_bytes().count(b"\n") - 1 for part in folder.glob("*.part"))


def cut_off(folder: Path) -> None:
    """Leave the beginning of a line at the end of the recording."""
    (part,) = folder.glob("*.part")
    with part.open("ab") as file:
        file.write(b'{"arrival_s":17')


@pytest.mark.study
def test_a_killed_capture_is_finished_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "captures"

    async def run() -> tuple[str, str, int | None]:
        async with served(Stub()) as upstream, httpx.AsyncClient() as client:
            first, address = await started(upstream, folder)
            for _ in range(3):
                await client.post(f"{address}/v1/chat/completions", json=CHAT)
            # Another process writes it, which nobody here can wait for.
            while recorded(folder) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with (
                pytest.raises(LeaseHeld, match="is in use by"),
                opened_recorder(CaptureOptions(folder=folder), by="proxy"),
            ):
                pass
            first.kill()
            await first.communicate()
            # The kernel cut off the line that was being written.
            cut_off(folder)
            second, address = await started(upstream, folder)
            await client.post(f"{address}/v1/chat/completions", json=CHAT)
            second.send_signal(signal.SIGTERM)
            out, err = await second.communicate()
            return out.decode(), err.decode(), second.returncode

    out, err, left_with = asyncio.run(run())
    assert left_with == 143
    assert err.splitlines() == [
        "capture: 1 recorded, 0 of them cancelled and 0 failed; 0 in flight, 0 unrecorded",
        "SIGTERM: stopped.",
    ]
    assert list(folder.glob("*.part")) == []
    traces = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    assert [load_trace(path).meta.requests for path in traces] == [3, 1]
    adopted = json.loads(traces[0].with_suffix(".meta.json").read_text())
    assert adopted["recording"]["torn"] == 1
    assert out.split() == [str(traces[1])]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--upstream", "ftp://x", "--output", "f"], "--upstream must begin with http://"),
        (
            ["--upstream", "http://x", "--output", "f", "--listen", "0.0.0.0:1"],
            "clients of other machines could reach the proxy",
        ),
        (["--upstream", "http://x", "--output", "f", "--rotate", "soon"], "soon"),
        (["--upstream", "http://x", "--output", "f", "--rotate", "0"], "must be at least 1 s"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_made(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(words)):
        app(["capture", *arguments], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []
