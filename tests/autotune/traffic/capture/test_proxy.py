from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from autotune.errors import EnvironmentFault, UsageError
from autotune.traffic.capture.finishing import Finisher
from autotune.traffic.capture.observe import Observed
from autotune.traffic.capture.opening import CaptureOptions, opened_recorder
from autotune.traffic.capture.proxy import Address, bound, parse_listen, report, serve
from autotune.traffic.capture.recorder import Counts, Recorder
from autotune.traffic.model import Trace, TraceRequest
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.capture.stub import Stub, prompt_tokens, proxied, served

pytestmark = pytest.mark.wire

REQUESTS = 200


@dataclass(frozen=True)
class Theirs:
    """What the client knows of a request; its prompt is as long as no other."""

    prompt: int
    output: int
    begun_s: float
    ended_s: float


async def ask(client: AsyncOpenAI, number: int) -> Theirs:
    content = "x" * 400 + "y" * (4 * number)
    begun_s = time.time()
    output = 0
    stream = await client.chat.completions.create(
        model="stub",
        messages=[{"role": "user", "content": content}],
        max_tokens=1 + number % 9,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for part in stream:
        output += sum(bool(choice.delta.content) for choice in part.choices)
    asked = {"messages": [{"content": content}]}
    return Theirs(prompt_tokens(asked), output, begun_s, time.time())


def captured(folder: Path) -> Trace:
    (path,) = folder.glob("*.jsonl")
    return load_trace(path)


def test_hundreds_of_streams_are_captured_as_the_client_saw_them(tmp_path: Path) -> None:
    theirs: list[Theirs] = []

    async def run(recorder: Recorder) -> None:
        async with (
            served(Stub()) as upstream,
            proxied(upstream, lambda app: Observed(app, recorder)) as address,
            AsyncOpenAI(base_url=f"{address}/v1", api_key="sk-x", max_retries=0) as client,
        ):
            for start in range(0, REQUESTS, 50):
                asking = (ask(client, number) for number in range(start, start + 50))
                theirs.extend(await asyncio.gather(*asking))

    with opened_recorder(
        CaptureOptions(folder=tmp_path), by="proxy", finisher=Finisher()
    ) as recorder:
        asyncio.run(run(recorder))
    trace = captured(tmp_path)
    told = trace.meta.recording
    assert told is not None
    assert (told.completed, told.without_tokens, told.estimated_outputs) == (REQUESTS, 0, 0)
    assert trace.meta.gaps == ()
    ours = {each.input_length: each for each in trace.requests}
    assert ours.keys() == {each.prompt for each in theirs}
    start_s = datetime.fromisoformat(trace.meta.captured_at or "").timestamp()
    for each in theirs:
        seen = ours[each.prompt]
        assert (seen.output_length, seen.outcome) == (each.output, None)
        arrival_s = start_s + seen.timestamp_ms / 1e3
        # Both clocks are the same; the trace keeps microseconds.
        assert each.begun_s - 1e-5 <= arrival_s
        assert arrival_s + (seen.e2e_ms or 0.0) / 1e3 <= each.ended_s + 1e-2
        assert 0 < (seen.ttft_ms or 0.0) <= (seen.e2e_ms or 0.0)
        assert seen.cached_tokens == 16


def test_cancelled_and_failed_requests_are_recorded_as_such(tmp_path: Path) -> None:
    async def chat(client: AsyncOpenAI, model: str) -> None:
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Why?"}], stream=True
        )
        async for part in stream:
            if model == "endless" and part.choices[0].delta.content:
                break
        await stream.close()

    async def run(recorder: Recorder) -> None:
        stub = Stub()
        async with (
            served(stub) as upstream,
            proxied(upstream, lambda app: Observed(app, recorder)) as address,
            AsyncOpenAI(base_url=f"{address}/v1", api_key="sk-x", max_retries=0) as client,
        ):
            await chat(client, "endless")
            await asyncio.wait_for(stub.hold.wait(), 30)
            with pytest.raises((openai.APIError, httpx.HTTPError)):
                await chat(client, "dies")
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model="m", prompt="x")
            # No tokens are made here, so that this is no request of the trace.
            with pytest.raises(openai.NotFoundError):
                await client.models.list()

    with opened_recorder(
        CaptureOptions(folder=tmp_path), by="proxy", finisher=Finisher()
    ) as recorder:
        asyncio.run(run(recorder))
    trace = captured(tmp_path)
    told = trace.meta.recording
    assert told is not None
    assert (told.completed, told.cancelled, told.failed) == (0, 1, 2)
    assert told.without_tokens == 1
    assert [(each.model, each.outcome) for each in trace.requests] == [
        ("endless", "cancelled"),
        ("dies", "failed"),
    ]
    assert all(request_is_short(each) for each in trace.requests)


def request_is_short(request: TraceRequest) -> bool:
    return bool(request.output_length in (1, 2) and request.estimated)


def test_a_signal_ends_it_when_all_is_written(tmp_path: Path) -> None:
    said: list[str] = []

    async def run(recorder: Recorder) -> int | None:
        listening = asyncio.Event()
        listener = bound(Address("127.0.0.1", 0))
        port = listener.getsockname()[1]
        async with served(Stub()) as upstream:
            serving = asyncio.ensure_future(
                serve(
                    listener,
                    upstream,
                    recorder,
                    with_text=False,
                    say=said.append,
                    ready=listening.set,
                )
            )
            await listening.wait()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                body = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}
                answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert gc.get_freeze_count() > 0
            os.kill(os.getpid(), signal.SIGTERM)
            return await serving

    with opened_recorder(
        CaptureOptions(folder=tmp_path), by="proxy", finisher=Finisher()
    ) as recorder:
        assert asyncio.run(run(recorder)) == signal.SIGTERM
    assert gc.get_freeze_count() == 0
    assert captured(tmp_path).meta.requests == 1


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("127.0.0.1:8100", Address("127.0.0.1", 8100)),
        ("[::1]:0", Address("::1", 0)),
        ("localhost:1", Address("localhost", 1)),
    ],
)
def test_where_to_listen(given: str, address: Address) -> None:
    assert parse_listen(given, allow_remote_clients=False) == address


@pytest.mark.parametrize("given", ["8100", ":8100", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        parse_listen(given, allow_remote_clients=True)


@pytest.mark.parametrize("given", ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "gateway:80"])
def test_other_machines_have_to_be_let_in(given: str) -> None:
    with pytest.raises(UsageError, match="clients of other machines"):
        parse_listen(given, allow_remote_clients=False)
    assert parse_listen(given, allow_remote_clients=True).port == 80


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(EnvironmentFault, match="cannot listen on"):
            bound(address)


def test_the_report_counts() -> None:
    counts = Counts(recorded=1200, cancelled=3, failed=1, lost=2)
    assert report(counts, 7) == (
        "1,200 recorded, 3 of them cancelled and 1 failed; 7 in flight, 2 unrecorded"
    )
