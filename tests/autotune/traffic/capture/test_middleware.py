from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from autotune.traffic.capture.middleware import CaptureMiddleware, in_place
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.capture.stub import served

pytestmark = pytest.mark.wire

USAGE = {"prompt_tokens": 33, "completion_tokens": 2}


async def chat(request: Request) -> Response:
    asked = await request.json()
    if not asked.get("stream"):
        return JSONResponse({"choices": [{"message": {"content": "So."}}], "usage": USAGE})

    async def parts() -> AsyncIterator[bytes]:
        for word in ("So", "."):
            yield b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % word.encode()
        yield b"data: [DONE]\n\n"

    return StreamingResponse(parts(), media_type="text/event-stream")


async def models(_request: Request) -> Response:
    return JSONResponse({"data": []})


def application(environ: dict[str, str], ended: list[bool]) -> Starlette:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        ended.append(in_place())

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    # As ``vllm serve --middleware`` adds it.
    app.add_middleware(CaptureMiddleware, environ=environ)
    return app


def talk(environ: dict[str, str]) -> tuple[list[bytes], list[bool]]:
    ended: list[bool] = []

    async def run() -> list[bytes]:
        app = application(environ, ended)
        async with (
            served(app, lifespan="on") as address,
            httpx.AsyncClient(base_url=address) as client,
        ):
            body = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}
            answers = [
                await client.post("/v1/chat/completions", json=body),
                await client.post("/v1/chat/completions", json={**body, "stream": True}),
                await client.get("/v1/models"),
            ]
        return [each.content for each in answers]

    return asyncio.run(run()), ended


def test_a_server_records_itself_and_finishes_as_it_shuts_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, ended = talk({"AUTOTUNE_CAPTURE": str(tmp_path)})
    # It records to the end, and the files are finished when the server has ended.
    assert ended == [True]
    assert not in_place()
    (path,) = tmp_path.glob("*.jsonl")
    trace = load_trace(path)
    assert trace.meta.recording is not None
    assert (trace.meta.recording.by, trace.meta.recording.completed) == ("middleware", 2)
    assert [each.output_length for each in trace.requests] == [2, 2]
    assert [each.estimated for each in trace.requests] == [None, True]
    assert capsys.readouterr().err == f"capture: the middleware records into {tmp_path}\n"
    # The answers are those of a server without it.
    assert talk({})[0] == recorded
    assert capsys.readouterr().err == ""


def test_without_the_variable_it_is_not_in_the_way() -> None:
    answers, ended = talk({})
    assert len(answers) == 3
    assert ended == [False]
