from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.watching.events import Announcer
from autotune.watching.listener import Ending
from autotune.watching.outbox import Outbox
from autotune.watching.progress import StudyProgress
from tests.autotune.study.records import limits, record, study_record
from tests.autotune.watching.builders import Clock, progress_on


class Kept:
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def deliver(self, message: str) -> None:
        self.sent.append(json.loads(message))

    def give_up(self) -> None:
        raise AssertionError("nothing takes any time")


def test_the_first_success_and_the_end_are_worth_a_message() -> None:
    kept, progress = Kept(), progress_on(Clock())
    announcer = Announcer(progress, Outbox([kept], complain=print), now=Clock().now)
    progress.opened(study_record(budget="ttft_p95:500"), [])
    for number, ttft_ms in enumerate((700.0, 300.0, 200.0)):
        metrics = {"ttft_p95": ttft_ms}
        row = record(number, limits(256 + number), metrics=metrics, engine={})
        progress.finished(row)
        announcer.finished(row)
    progress.ended(Ending("finished", 0))
    announcer.ended(Ending("finished", 0))
    announcer.close()
    first, last = kept.sent
    assert (first["event"], first["exit_code"]) == ("first_feasible", None)
    assert first["text"] == (
        "study 'night' trial 1 is the first to keep the budget; 2 of 8 trials; "
        "nothing keeps the budget so far"
    )
    assert (last["event"], last["exit_code"], last["reason"]) == ("finished", 0, None)
    assert last["time"] == "2026-11-30T12:00:00.000Z"
    assert last["status"]["state"] == "finished"
    assert list(first) == list(last)


@pytest.mark.parametrize(
    ("ending", "what"),
    [
        (Ending("interrupted", 143, "SIGTERM"), "interrupted with exit code 143: SIGTERM"),
        (Ending("failed", 4, "disk s3cret full"), "failed with exit code 4: disk *** full"),
    ],
)
def test_whatever_ends_it_early_is_worth_one(ending: Ending, what: str) -> None:
    kept, progress = Kept(), progress_on(Clock())
    announcer = Announcer(progress, Outbox([kept], complain=print))
    progress.ended(ending)
    announcer.ended(ending)
    announcer.close()
    (sent,) = kept.sent
    assert sent["event"] == "aborted"
    assert sent["exit_code"] == ending.exit_code
    assert sent["text"].startswith(f"study 'night' {what}; 0 of 8 trials; ")


def with_best(progress: StudyProgress, **found: Any) -> None:
    for name, value in found.items():
        setattr(progress, f"_{name}", value)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"best": {"candidate": limits(512)}}, "max_num_seqs=64"),
        ({"unconfirmed": {"candidate": limits(512)}}, "(no restart has confirmed it)"),
    ],
)
def test_the_best_so_far_is_named(found: dict[str, Any], words: str) -> None:
    kept, progress = Kept(), progress_on(Clock())
    announcer = Announcer(progress, Outbox([kept], complain=print))
    with_best(progress, **found)
    announcer.ended(Ending("failed", 1, "odd"))
    announcer.close()
    text = kept.sent[0]["text"]
    assert "best so far max_num_batched_tokens=512, max_num_seqs=64" in text
    assert text.endswith(words)
