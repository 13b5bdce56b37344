"""The settings of how engines are supervised."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field

from autotune.endpoint_settings import Seconds

LOG_BYTES: Final = 64 * 2**20
"""What the log of an engine may take of the disk."""


class SupervisionSettings(BaseModel):
    """Part of ``TuneSettings``; none of it belongs to a study's fingerprint.

    Attributes:
        start_timeout_s: longest time an engine may take to come up.
        silence_timeout_s: longest time without a token while requests wait.
        settle_timeout_s: longest time until what an engine held has been given back.
        engine_log_bytes: size beyond which the middle of an engine's log is cut out.
    """

    start_timeout_s: Seconds = Field(default=1800.0, gt=0.0)
    silence_timeout_s: Seconds = Field(default=120.0, gt=0.0)
    settle_timeout_s: Seconds = Field(default=60.0, gt=0.0)
    engine_log_bytes: int = Field(default=LOG_BYTES, ge=2**20)
