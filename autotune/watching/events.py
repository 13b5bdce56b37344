"""What is worth a message: the first success, and the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from autotune.watching.listener import Ending, Listener
from autotune.watching.outbox import Outbox
from autotune.watching.progress import SCHEMA_VERSION, StudyProgress, stamp
from storage.records import TrialRecord

EventName = Literal["first_feasible", "finished", "aborted"]


class Announcer(Listener):
    """Sends a message of every event.

    Args:
        progress: told before this one.
        outbox: takes the messages.
        now: the time of day, UTC.
    """

    trouble = "messages of it cannot be sent"

    def __init__(
        self,
        progress: StudyProgress,
        outbox: Outbox,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._progress = progress
        self._outbox = outbox
        self._now = now

    def finished(self, row: TrialRecord) -> None:
        if self._progress.first_feasible is row:
            self._send("first_feasible", f"trial {row.number} is the first to keep the budget")

    def ended(self, ending: Ending) -> None:
        if ending.state == "finished":
            self._send("finished", f"finished with exit code {ending.exit_code}")
        else:
            self._send("aborted", f"{ending.state} with exit code {ending.exit_code}")

    def close(self) -> None:
        self._outbox.close()

    def _send(self, event: EventName, what: str) -> None:
        body = event_json(event, what, self._progress.document(), at=self._now())
        self._outbox.post(json.dumps(body, allow_nan=False))


def event_json(
    event: EventName, what: str, status: dict[str, Any], *, at: datetime
) -> dict[str, Any]:
    """Return a message as it is sent; its ``text`` is for people."""
    return {
        "schema_version": SCHEMA_VERSION,
        "event": event,
        "time": stamp(at),
        "text": _text(what, status),
        "exit_code": status["exit_code"],
        "reason": status["reason"],
        "status": status,
    }


def _text(what: str, status: dict[str, Any]) -> str:
    simulated = "" if status["simulated"] is None else f" (simulated by {status['simulated']})"
    reason = "" if status["reason"] is None else f": {status['reason']}"
    trials = status["trials"]
    done = f"{trials['finished']} of {trials['total']} trials"
    return f"study {status['study']!r}{simulated} {what}{reason}; {done}; {_found(status)}"


def _found(status: dict[str, Any]) -> str:
    best, unconfirmed = status["best"], status["unconfirmed"]
    if best is None and unconfirmed is None:
        return "nothing keeps the budget so far"
    pairs = (best or unconfirmed)["candidate"].items()
    doubt = " (no restart has confirmed it)" if best is None else ""
    return f"best so far {', '.join(f'{name}={value}' for name, value in pairs)}{doubt}"
