"""What was asked and answered is in no file and in no word, unless texts were asked for."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import httpx
import pytest

from autotune.traffic.capture.finishing import Finisher
from autotune.traffic.capture.observe import Observed
from autotune.traffic.capture.opening import CaptureOptions, opened_recorder
from autotune.traffic.capture.record import Record
from autotune.traffic.capture.recorder import Recorder
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.capture.stub import WORD, Stub, proxied, served

pytestmark = pytest.mark.wire

KEY = "sk-planted-4711"
PROMPT = "planted prompt "
CHAT = {"model": "m", "messages": [{"role": "user", "content": PROMPT * 9}], "max_tokens": 5}
BODIES = [
    json.dumps(CHAT).encode(),
    json.dumps({**CHAT, "stream": True}).encode(),
    json.dumps({**CHAT, "stream": True, "model": "dies"}).encode(),
    b'{"model": "planted prompt", "messages": [',
]


def talk(folder: Path, *, with_text: bool) -> list[str]:
    """Send what must not be kept through the proxy; return what was said."""
    said: list[str] = []

    async def run(recorder: Recorder) -> None:
        async with (
            served(Stub()) as upstream,
            proxied(upstream, lambda app: Observed(app, recorder, with_text=with_text)) as address,
            httpx.AsyncClient(base_url=address) as client,
        ):
            for path in ("/v1/chat/completions", "/v1/completions"):
                for body in BODIES:
                    headers = {"Authorization": f"Bearer {KEY}"}
                    try:
                        await client.post(f"{path}?key={KEY}", content=body, headers=headers)
                    except httpx.HTTPError:
                        continue

    with opened_recorder(
        CaptureOptions(folder=folder, with_text=with_text),
        by="proxy",
        finisher=Finisher(),
        say=said.append,
    ) as recorder:
        asyncio.run(run(recorder))
        # Something fails while a body is read.
        recorder._read = fails
        asyncio.run(run(recorder))
    return said


def fails(_seen: object) -> list[Record]:
    raise ValueError(PROMPT + KEY)


def test_nothing_planted_is_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    said = talk(tmp_path, with_text=False)
    texts = [path.read_text() for path in tmp_path.iterdir()]
    out, err = capfd.readouterr()
    everything = "\n".join([*texts, *said, out, err, caplog.text])
    assert len(texts) == 4
    for planted in (KEY, "planted", WORD):
        assert planted not in everything
    assert "could not be read (ValueError)" in everything
    private = [path for path in tmp_path.iterdir() if path.name != ".lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    (trace,) = tmp_path.glob("*.jsonl")
    salt = (tmp_path / ".salt").read_text().strip()
    assert salt not in trace.read_text() + trace.with_suffix(".meta.json").read_text()


def test_texts_are_kept_with_a_warning(tmp_path: Path) -> None:
    said = talk(tmp_path, with_text=True)
    assert said[0].startswith("prompts and answers are kept as text")
    (path,) = tmp_path.glob("*.jsonl")
    trace = load_trace(path)
    assert trace.meta.with_text
    assert trace.requests[0].prompt_text == "user\n" + PROMPT * 9
    assert trace.requests[0].output_text == " ".join([WORD] * 5)
    assert trace.requests[1].output_text == f"{WORD} " * 5
    assert KEY not in path.read_text()
