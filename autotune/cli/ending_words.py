"""That a study was ended by its deadline, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cli.tables import joined
from autotune.study.ending import LEFT_OUT, ending_of, out_of_time
from autotune.study.plan import finished_trials

if TYPE_CHECKING:
    from autotune.study.view import StudyView


def ending_lines(view: StudyView) -> list[str]:
    """Return that the time was over, and what was left out; nothing if something else ended it."""
    if not out_of_time(view.study):
        return []
    finished, total = finished_trials(view.trials), int(view.study.spec["trials"])
    left_out = ending_of(view.study)[LEFT_OUT]
    confirmations, replays = left_out["confirmations"], left_out["holdout_replays"]
    parts = []
    if confirmations:
        parts.append(f"{confirmations} {_plural(confirmations, 'restart')} to confirm the winner")
    if replays:
        parts.append(f"{replays} {_plural(replays, 'replay')} of what is held out")
    missing = f" Left out: {joined(parts)}." if parts else ""
    return [f"Ended by its deadline, with {finished} of {total} trials.{missing}"]


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
