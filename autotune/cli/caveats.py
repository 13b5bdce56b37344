"""What a verdict cannot show by its candidates alone: who is missing, what ran beside replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.candidates.lattice import cell_key
from autotune.cli.conditions import beside_work
from autotune.cli.tables import joined, limits
from autotune.study.confirm import ATTEMPTS, FINISHED, MISSED
from objectives.statistics import requests_needed

_MEDIAN = "p50"

if TYPE_CHECKING:
    from autotune.study.judgement import Judgement
    from storage.records import TrialRecord


def few_requests_lines(requests: int) -> list[str]:
    """Return that a window is too short to tell candidates apart; nothing of any longer one.

    That is one of so few requests that not even a median has an upper bound.
    """
    needed = requests_needed(_MEDIAN)
    if needed is None or requests >= needed:
        return []
    count = "1 request" if requests == 1 else f"{requests} requests"
    short = f"the window has {count}, and even {_MEDIAN} has no upper bound below {needed}"
    longer = "Give a longer --window, which is a new study."
    return [f"Too short to tell candidates apart: {short}. {longer}"]


def caveat_lines(judgement: Judgement, trials: Sequence[TrialRecord]) -> Iterator[str]:
    """Name candidates that could not be measured, and replays that ran beside other work."""
    yield from _unmeasured(judgement, trials)
    yield from _beside(trials)


def _unmeasured(judgement: Judgement, trials: Sequence[TrialRecord]) -> Iterator[str]:
    groups: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        if trial.phase != "sentinel":
            groups.setdefault(cell_key(trial.candidate), []).append(trial)
    judged = {cell_key(cell.candidate) for cell in judgement.cells}
    missing = []
    for key, group in groups.items():
        missed = [trial for trial in group if trial.state in MISSED]
        finished = key in judged or any(trial.state in FINISHED for trial in group)
        if not finished and len(missed) >= ATTEMPTS:
            reasons = dict.fromkeys(str(trial.failure_class) for trial in missed)
            missing.append(f"{limits(group[0].candidate)} ({', '.join(reasons)})")
    if missing:
        yield f"Could not be measured, so nothing is known of: {joined(missing)}."


def _beside(trials: Sequence[TrialRecord]) -> Iterator[str]:
    watched = [trial for trial in trials if (trial.engine or {}).get("hardware")]
    shares = {t.number: share for t in watched if (share := beside_work(t)) is not None}
    if shares:
        most = "up to " if len(shares) > 1 else ""
        numbers = joined(list(map(str, shares)))
        yield (
            f"{len(shares)} of {len(watched)} {'replay' if len(watched) == 1 else 'replays'} ran "
            f"beside other work, which had {most}{100 * max(shares.values()):.0f} % of the "
            f"processors: {'trial' if len(shares) == 1 else 'trials'} {numbers}."
        )
