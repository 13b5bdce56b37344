from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.engine.channel import Channel, Message
from autotune.engine.host import EngineHost, prepare
from autotune.engine.supervisor import arrays_of
from autotune.traffic.model import Trace, TraceRequest

pytestmark = pytest.mark.wire

BODY: dict[str, Any] = {"block_size": 16, "seed": 3, "salt": "one"}


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


def trace() -> Trace:
    rows = [
        TraceRequest(0.0, 40, 5, (1, 2, 3)),
        TraceRequest(250.0, 20, 9, (1, 4), priority=2),
        TraceRequest(500.0, 16, 1, (5,)),
    ]
    return Trace.build(rows, block_size=16, prefixes_known=True, source="test")


def test_requests_are_prepared_from_the_arrays_of_the_supervisor() -> None:
    prepared = prepare(arrays_of(trace()), BODY, vocab_size=4096)
    assert [(r.scheduled_s, len(r.prompt), r.output_tokens, r.priority) for r in prepared] == [
        (0.0, 40, 5, 0),
        (0.25, 20, 9, 2),
        (0.5, 16, 1, 0),
    ]
    first, second, third = (list(request.prompt) for request in prepared)
    assert first[:16] == second[:16]
    assert first[16:20] != second[16:]
    assert first[:16] != third
    assert all(4 <= token < 4096 for token in first + second + third)


def test_the_prompts_depend_on_the_seed_and_not_on_the_salt() -> None:
    def prompts(**changed: Any) -> list[list[int]]:
        prepared = prepare(arrays_of(trace()), {**BODY, **changed}, vocab_size=4096)
        return [list(request.prompt) for request in prepared]

    assert prompts(salt="two") == prompts()
    assert prompts(seed=4) != prompts()


def test_arrays_that_crossed_the_channel_prepare_the_same(
    channels: tuple[Channel, Channel],
) -> None:
    ours, theirs = channels
    ours.send(Message("replay", BODY, arrays_of(trace())))
    received = theirs.receive()
    assert prepare(received.arrays, received.body, vocab_size=4096) == prepare(
        arrays_of(trace()), BODY, vocab_size=4096
    )


def test_the_host_ends_when_told_and_when_its_controller_has_gone(
    channels: tuple[Channel, Channel],
) -> None:
    ours, theirs = channels
    ours.send(Message("quit"))
    asyncio.run(EngineHost(theirs).serve())
    ours.close()
    asyncio.run(EngineHost(theirs).serve())


def test_an_error_of_any_kind_becomes_an_answer(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    ours.send(Message("juggle"))
    ours.send(Message("replay", BODY, {"hash_ids": np.arange(3)}))
    ours.send(Message("stop"))
    ours.send(Message("quit"))
    asyncio.run(EngineHost(theirs).serve())
    answers = [ours.receive() for _ in range(3)]
    assert [answer.kind for answer in answers] == ["failed", "failed", "stopped"]
    assert answers[0].body == {"class": "unknown", "evidence": "KeyError: 'juggle'"}


REDIRECT = """
import subprocess, sys
from pathlib import Path
from autotune.engine.host import redirect_output

for path in sys.argv[1:]:
    redirect_output(Path(path))
    print("mine", flush=True)
    subprocess.run([sys.executable, "-c", "import sys; print('theirs', file=sys.stderr)"])
"""


def test_output_goes_to_the_log_of_the_trial(tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_text("of an earlier study\n")
    done = subprocess.run(
        [sys.executable, "-c", REDIRECT, str(first), str(second)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert first.read_text() == "mine\ntheirs\n"
    assert second.read_text() == "mine\ntheirs\n"
    assert second.stat().st_mode & 0o777 == 0o600
    assert done.stdout == done.stderr == ""


def test_the_host_imports_neither_vllm_nor_torch_before_it_is_asked() -> None:
    source = "import sys, autotune.engine.host; print({'vllm', 'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
