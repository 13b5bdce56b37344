"""Capture as an ASGI middleware.

``vllm serve MODEL --middleware autotune.traffic.capture.middleware.CaptureMiddleware`` with the
environment variable ``AUTOTUNE_CAPTURE`` set to a folder. Without that variable it is not in the
way of anything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from autotune.traffic.capture.environment import ServerRecorder
from autotune.traffic.capture.observe import App, Message, Observed, Receive, Scope, Send

_in_place: list[CaptureMiddleware] = []


class CaptureMiddleware:
    """Records what passes to ``app``, which is not changed.

    Args:
        app: the application.
        environ: where the variables are, None for those of the process.
    """

    def __init__(self, app: App, environ: Mapping[str, str] | None = None) -> None:
        self._app = app
        self._recording = ServerRecorder(
            os.environ if environ is None else environ, by="middleware"
        )
        recorder = self._recording.recorder
        self._observed = (
            None
            if recorder is None
            else Observed(app, recorder, with_text=self._recording.with_text)
        )
        if recorder is not None:
            _in_place.append(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._observed is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self._observed(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Finish the files once the application has shut down, before the server ends."""

        async def sent(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await asyncio.to_thread(self.close)
            await send(message)

        await self._app(scope, receive, sent)

    def close(self) -> None:
        """Finish the files and let traffic pass unrecorded; safe to repeat."""
        self._observed = None
        if self in _in_place:
            _in_place.remove(self)
        self._recording.close()


def in_place() -> bool:
    """Whether a middleware records in this process, so that a plug-in need not."""
    return bool(_in_place)
