"""How long a study still takes, judged by what its earlier trials took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.records import TrialRecord

PARTS = ("start", "warmup", "replay", "stop")
"""The parts of a trial in order; the seconds of each are stored as ``start_s`` and so on."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each part of a trial is expected to take.

    Attributes:
        seconds: by part, one of ``PARTS``.
        measured: False before any trial has told; the seconds are a lower bound then.
    """

    seconds: Mapping[str, float]
    measured: bool

    def left_s(self, trials: int, *, part: str = PARTS[0], elapsed_s: float = 0.0) -> float:
        """Return the seconds until ``trials`` trials have ended, the running one among them.

        Args:
            trials: how many, 0 for none.
            part: what the running trial is at.
            elapsed_s: since that part began; what it takes longer than expected counts as
                nothing more to come.

        Raises:
            ValueError: there is no such part.
        """
        if trials <= 0:
            return 0.0
        at = PARTS.index(part)
        current = max(0.0, self.seconds[part] - elapsed_s)
        later = sum(self.seconds[name] for name in PARTS[at + 1 :])
        return current + later + (trials - 1) * sum(self.seconds.values())


def pace(trials: Sequence[TrialRecord], *, window_s: float, warmup_s: float) -> Pace:
    """Return the mean of each part over the trials that were timed.

    The mean, since many trials together take that many times it, slow ones included. Before
    any was timed, and for a part that none has a time of, it is what the window takes by
    itself: a replay lasts at least as long as its window, a warm-up as long as its share.
    """
    least = {"start": 0.0, "warmup": min(warmup_s, window_s), "replay": window_s, "stop": 0.0}
    timed = [trial.timings for trial in trials if trial.timings]
    seconds = dict(least)
    for name in PARTS:
        known = [value for each in timed if (value := each.get(f"{name}_s")) is not None]
        if known:
            seconds[name] = sum(known) / len(known)
    return Pace(seconds, measured=bool(timed))
