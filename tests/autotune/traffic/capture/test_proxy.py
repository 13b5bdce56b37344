from __future__ import annotations

import asyncio
import time
from pathlib import Path

from openai import AsyncOpenAI

from autotune.traffic.capture.finishing import Finisher
from autotune.traffic.capture.observe import Observed
from autotune.traffic.capture.opening import CaptureOptions, opened_recorder
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.capture.stub import Stub, prompt_tokens, proxied, served


def test_hundreds_of_streams_are_captured_as_the_client_saw_them(tmp_path: Path) -> None:
    theirs: list[tuple[float, int, int, int]] = []

    async def ask(client: AsyncOpenAI, number: int) -> None:
        content = f"system prompt {'x' * 400} question {number} " + "y" * (number * 7 % 900)
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
        theirs.append((begun_s, prompt_tokens(asked), output, 1 + number % 9))

    async def run() -> None:
        with opened_recorder(
            CaptureOptions(folder=tmp_path), by="proxy", finisher=Finisher()
        ) as recorder:
            async with (
                served(Stub()) as upstream,
                proxied(upstream, lambda app: Observed(app, recorder)) as address,
                AsyncOpenAI(base_url=f"{address}/v1", api_key="sk-x", max_retries=0) as client,
            ):
                for start in range(0, 300, 50):
                    await asyncio.gather(*(ask(client, n) for n in range(start, start + 50)))

    asyncio.run(run())
    (path,) = tmp_path.glob("*.jsonl")
    trace = load_trace(path)
    theirs.sort()
    assert trace.meta.requests == 300
    assert trace.meta.recording is not None
    assert trace.meta.recording.completed == 300
    assert trace.meta.recording.without_tokens == 0
    assert sorted((p, o) for _, p, o, _ in theirs) == sorted(
        (r.input_length, r.output_length) for r in trace.requests
    )
    assert trace.meta.prefixes == "estimated"
