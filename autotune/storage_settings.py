"""The settings of a study's database: how it is waited for, leased and copied."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from autotune.endpoint_settings import Seconds
from autotune.moments import seconds_in

NEVER: Final = "never"
_LEAST_S: Final = 60.0


class StorageSettings(BaseModel):
    """Part of ``TuneSettings``.

    Attributes:
        database_patience_s: how long a database that is locked or down is tried again.
        lease_heartbeat_s: how often a controller says that it lives.
        lease_expiry_s: after which without that its study may be taken over.
        backup_every: how often an SQLite file is copied, ``1h``; ``never`` for not at all.
    """

    database_patience_s: Seconds = Field(default=600.0, ge=0.0, le=86_400.0)
    lease_heartbeat_s: Seconds = Field(default=10.0, gt=0.0, le=3600.0)
    lease_expiry_s: Seconds = Field(default=60.0, gt=0.0, le=86_400.0, validate_default=True)
    backup_every: str = "1h"

    @property
    def backup_every_s(self) -> float | None:
        """The same in seconds, None for never."""
        return seconds_in(self.backup_every)

    @field_validator("lease_expiry_s")
    @classmethod
    def _heard_of_in_time(cls, expiry_s: float, info: ValidationInfo) -> float:
        heartbeat_s = info.data.get("lease_heartbeat_s", 0.0)
        if expiry_s < 3 * heartbeat_s:
            raise ValueError(f"must be at least three heartbeats, {3 * heartbeat_s:g}")
        return expiry_s

    @field_validator("backup_every", mode="before")
    @classmethod
    def _now_and_then(cls, given: object) -> str:
        text = "" if given is None or isinstance(given, bool) else str(given).strip()
        seconds = seconds_in(text)
        if text != NEVER and (seconds is None or seconds < _LEAST_S):
            raise ValueError(f"must be a length of time, at least 1m, such as 1h, or {NEVER}")
        return text
