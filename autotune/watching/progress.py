"""Where a study stands, as the status file and every message say it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from autotune.study.judgement import Judgement
from autotune.study.plan import finished_trials
from autotune.study.view import absolute_budget, feasible, simulated_by
from autotune.watching.best import best_json, unconfirmed_json
from autotune.watching.listener import Ending, Listener
from autotune.watching.remaining import time_left
from objectives.errors import ObjectiveError
from storage.records import StudyRecord, TrialRecord

SCHEMA_VERSION = 1

PREPARING = "preparing"
"""The phase before the first trial, and what belongs to no other."""
HOLDOUT = "holdout"
CALIBRATE = "calibrate"

_MOST_EVIDENCE = 500


@dataclass(slots=True)
class Work:
    """What is done now: a stage, and how much of it; ``total`` None where that is not counted."""

    label: str = ""
    stage: str = "start"
    done: int = 0
    total: int | None = None
    since_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"stage": self.stage, "done": self.done, "total": self.total}


class StudyProgress(Listener):
    """Keeps what is known of a run of a study.

    Args:
        name: of the study.
        simulated: name of the profile, None for real engines.
        trials: how many are asked for.
        mask: returns what others say without secrets.
        now: the time of day, UTC.
        clock: seconds that only grow.
    """

    trouble = "its progress is not known"

    def __init__(
        self,
        name: str,
        *,
        simulated: str | None,
        trials: int,
        mask: Callable[[str], str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._head: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "study": mask(name),
            "simulated": simulated,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self._total = trials
        self._mask = mask
        self._now = now
        self._clock = clock
        self._started_at = now()
        self._phase = PREPARING
        self._study: StudyRecord | None = None
        self._ended: list[TrialRecord] = []
        self._running: TrialRecord | None = None
        self._to_come = 0
        self._work: Work | None = None
        self._eta: tuple[float, float] | None = None
        self._judge: Callable[[], Judgement | None] = lambda: None
        self._best: dict[str, Any] | None = None
        self._unconfirmed: dict[str, Any] | None = None
        self._deadline: datetime | None = None
        self._ending: Ending | None = None
        self.first_feasible: TrialRecord | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a study whose trials may follow."""
        return self._study is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing will follow."""
        return self._ending is not None

    @property
    def finished_count(self) -> int:
        """How many trials count towards the total."""
        return finished_trials(self._ended)

    def due(self, left_s: float) -> None:
        self._deadline = self._now() + timedelta(seconds=left_s)

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
        self._study = study
        self._head["simulated"] = simulated_by(study)
        self._ended = [row for row in trials if row.state != "running"]
        self._total = int(study.spec["trials"])
        # The calibration is over.
        self._phase, self._work = PREPARING, None
        self.first_feasible = next(filter(self._keeps_budget, self._ended), None)

    def judging(self, judge: Callable[[], Judgement | None]) -> None:
        self._judge = judge
        self._judged()

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        self._running, self._total = row, total
        self._to_come = total - position + 1
        self._phase = row.phase
        self._work = Work(since_s=self._clock())
        self._reckon()

    def progress(self, body: Mapping[str, Any]) -> None:
        label, stage = str(body.get("label", "")), str(body["stage"])
        if self._work is None or self._work.label != label or self._work.stage != stage:
            self._work = Work(label, stage, since_s=self._clock())
        self._work.done, self._work.total = int(body["done"]), int(body["total"]) or None
        if self._running is None:
            self._phase = HOLDOUT if label else CALIBRATE
        self._reckon()

    def finished(self, row: TrialRecord) -> None:
        self._running = self._work = None
        self._ended.append(row)
        if self.first_feasible is None and self._keeps_budget(row):
            self.first_feasible = row
        self._judged()

    def ended(self, ending: Ending) -> None:
        self._ending = ending
        if ending.state == "finished":
            self._running = self._work = None

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it, at this moment."""
        ending = self._ending
        return {
            **self._head,
            "state": "running" if ending is None else ending.state,
            "exit_code": None if ending is None else ending.exit_code,
            "reason": None
            if ending is None or ending.reason is None
            else self._mask(ending.reason),
            "phase": self._phase,
            "trial": self._trial_json(),
            "work": self._work_json(),
            "trials": {"finished": self.finished_count, "total": self._total},
            "started_at": stamp(self._started_at),
            "updated_at": stamp(self._now()),
            "eta_s": self._eta_s(),
            "deadline_at": None if self._deadline is None else stamp(self._deadline),
            "best": self._best,
            "unconfirmed": self._unconfirmed,
            "last_failure": self._last_failure(),
        }

    def words(self) -> str:
        """Return in a few words what is done now."""
        place = f"{self.finished_count} of {self._total} trials done"
        work, ending = self._work, self._ending
        if ending is not None:
            return f"{ending.state} with exit code {ending.exit_code}; {place}"
        if work is None:
            return f"{self._phase}; {place}"
        which = work.label or self._phase
        if self._running is not None:
            which = f"trial {self._running.number} {self._phase}"
        count = "" if work.total is None else f" {work.done} of {work.total}"
        return f"{which}: {work.stage}{count}; {place}"

    def _trial_json(self) -> dict[str, Any] | None:
        row = self._running
        if row is None or self._work is None:
            return None
        return {
            "number": row.number,
            "candidate": dict(row.candidate),
            "fidelity": row.fidelity,
            "replicate_of": row.replicate_of,
            **self._work.to_json(),
        }

    def _work_json(self) -> dict[str, Any] | None:
        if self._running is not None or self._work is None:
            return None
        return {"label": self._work.label, **self._work.to_json()}

    def _last_failure(self) -> dict[str, Any] | None:
        failed = next((row for row in reversed(self._ended) if row.failure_class), None)
        if failed is None:
            return None
        return {
            "trial": failed.number,
            "class": failed.failure_class,
            "evidence": self._mask(failed.failure_evidence or "")[:_MOST_EVIDENCE],
            "at": failed.finished_at,
        }

    def _keeps_budget(self, row: TrialRecord) -> bool:
        if self._study is None:
            return False
        return feasible(absolute_budget(self._study, self._ended), row) is True

    def _judged(self) -> None:
        try:
            judgement = self._judge()
        except ObjectiveError:
            # A budget relative to a baseline that was not measured yet.
            return
        if judgement is not None:
            self._best, self._unconfirmed = best_json(judgement), unconfirmed_json(judgement)

    def _reckon(self) -> None:
        """Take note of how long the rest takes, as far as trials have told."""
        if self._study is None or self._running is None or self._work is None:
            return
        now_s = self._clock()
        left = time_left(
            self._study,
            self._ended,
            self._running,
            to_come=self._to_come,
            part=self._work.stage,
            elapsed_s=now_s - self._work.since_s,
        )
        known = left is not None and left.measured
        self._eta = (left.seconds, now_s) if left is not None and known else None

    def _eta_s(self) -> float | None:
        if self._eta is None or self._ending is not None:
            return None
        seconds, reckoned_at = self._eta
        left_s = seconds - (self._clock() - reckoned_at)
        if self._deadline is not None:
            left_s = min(left_s, (self._deadline - self._now()).total_seconds())
        return round(max(0.0, left_s), 1)


def stamp(moment: datetime) -> str:
    """Return a moment in UTC as ISO 8601, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
