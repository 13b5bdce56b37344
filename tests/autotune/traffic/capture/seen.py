"""Sightings for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from autotune.traffic.capture.asked import Api
from autotune.traffic.capture.sighting import Sighting, Way


def sighting(
    response: bytes = b"{}",
    *,
    api: Api = "chat",
    body: object = None,
    status: int | None = 200,
    stream: bool = False,
    encoding: str = "",
    way: Way = "ended",
    arrival_s: float = 1000.0,
    held_bytes: int = 0,
) -> Sighting:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}
    given = asked if body is None else body
    return Sighting(
        api=api,
        arrival_s=arrival_s,
        body=given if isinstance(given, bytes) else json.dumps(given).encode(),
        status=status,
        stream=stream,
        encoding=encoding,
        head=response,
        tail=b"",
        size=len(response),
        events=(b"\n" + response).count(b"\ndata:"),
        stamps=((5.0, len(response)),),
        e2e_ms=9.0,
        way=way,
        held_bytes=held_bytes,
    )


def events(*values: Any, ended: bool = True) -> bytes:
    lines = [b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]
    return b"".join([*lines, b"data: [DONE]\n\n"] if ended else lines)


def delta(**content: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content}]}


def words(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the chunks of a chat: a role, then the texts."""
    return [delta(role="assistant", content=""), *(delta(content=text) for text in texts)]
