from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.settings import load_settings

GIVEN = {"model": "tiny", "trace": "small.jsonl"}


@pytest.mark.parametrize(
    ("every", "seconds"), [("1h", 3600.0), ("90m", 5400.0), (600, 600.0), ("never", None)]
)
def test_how_often_a_database_is_copied(every: object, seconds: float | None) -> None:
    assert load_settings(None, {**GIVEN, "backup_every": every}).backup_every_s == seconds


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backup_every": "5s"}, "--backup-every: must be a length of time, at least 1m"),
        ({"backup_every": True}, "--backup-every: must be a length of time"),
        ({"lease_expiry_s": 20}, "--lease-expiry-s: must be at least three heartbeats, 30"),
        ({"lease_heartbeat_s": 30}, "--lease-expiry-s: must be at least three heartbeats, 90"),
        ({"database_patience_s": -1}, "--database-patience-s: must be at least 0"),
    ],
)
def test_what_cannot_be_meant(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(None, {**GIVEN, **wrong})
    assert caught.value.message.startswith(said)
