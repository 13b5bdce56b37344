"""How long a study still takes, by what its trials took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.study.eta import PARTS, pace
from autotune.study.held import STARTS, held_part
from autotune.study.plan import live_given_up, live_to_come
from autotune.study.view import simulated_by
from storage.records import StudyRecord, TrialRecord


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds to the end; without engine starts where no trial was ``measured`` yet."""

    seconds: float
    measured: bool


def time_left(
    study: StudyRecord,
    trials: Sequence[TrialRecord],
    running: TrialRecord,
    *,
    to_come: int,
    part: str,
    elapsed_s: float,
) -> Left | None:
    """Return how long the rest takes; None where engines are simulated, whose time is on paper.

    Args:
        study: which one.
        trials: those that have ended.
        running: the one that runs.
        to_come: how many there are still, the running one among them.
        part: what that is at.
        elapsed_s: since that part began.
    """
    if simulated_by(study) is not None:
        return None
    warmup_s = float(study.fingerprint["warmup_s"])
    expected = pace(trials, window_s=float(study.spec["duration_s"]), warmup_s=warmup_s)
    live = study.fingerprint.get("fidelity") == "live" and not live_given_up(trials)
    left_s = expected.left_s(
        to_come,
        # What is no part of every trial is over before it begins.
        part=part if part in PARTS else PARTS[0],
        elapsed_s=elapsed_s if part in PARTS else 0.0,
        live=running.fidelity == "live",
        live_later=live_to_come([*trials, running], int(study.spec["trials"]), live=live),
    )
    return Left(left_s + _held_s(study, trials, warmup_s), expected.measured)


def _held_s(study: StudyRecord, trials: Sequence[TrialRecord], warmup_s: float) -> float:
    """Return how long replays of what is held out may take in the end, 0 without any."""
    part = held_part(study)
    if part is None:
        return 0.0
    each = pace(trials, window_s=part.seconds, warmup_s=warmup_s).seconds
    done = sum(len(result.replays) for result in part.results)
    # Trials replay another part of the window.
    return max(0, STARTS - done) * (sum(each.values()) - each["replay"] + part.seconds)
