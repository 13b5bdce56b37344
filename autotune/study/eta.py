"""How long a study still takes, and a trial at most, judged by what earlier trials took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.study.replays import FIRST_WARMUP_S
from storage.records import TrialRecord

PARTS = ("start", "warmup", "replay", "stop")
"""The parts of a trial in order; the seconds of each are stored as ``start_s`` and so on."""

SLOW_SHARE = 0.9
"""How many of the trials so far were no slower than what is allowed for the next."""

SPREAD = 0.25
"""By how much a second trial may take longer than the only one so far; for more it is shared."""

START_S = 300.0
STOP_S = 15.0
"""Of an engine of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long a trial may take: as long as one of slow ones.

    Attributes:
        seconds: by part, one of ``PARTS``, of a trial that starts an engine.
        live_seconds: the same on an engine that runs.
        start_known: whether any start was timed, or is known otherwise.
    """

    seconds: Mapping[str, float]
    live_seconds: Mapping[str, float]
    start_known: bool

    @property
    def restart_s(self) -> float:
        return sum(self.seconds.values())

    def live_s(self, *, starts: bool) -> float:
        """Return the same of a live trial; one that ``starts`` has its engine to start first."""
        own = sum(self.live_seconds.values())
        if not starts:
            return own
        further = max(0.0, self.seconds["warmup"] - self.live_seconds["warmup"])
        return own + self.seconds["start"] + further

    def on(self, window_s: float, *, instead_of_s: float) -> Allowance:
        """Return the same for another window: what comes after its end takes as long."""
        after_s = max(0.0, self.seconds["replay"] - instead_of_s)
        return replace(self, seconds={**self.seconds, "replay": window_s + after_s})


def allowance(
    trials: Sequence[TrialRecord],
    *,
    window_s: float,
    warmup_s: float,
    start_s: float | None = None,
) -> Allowance:
    """Return how long the next trial may take, by those that were timed.

    A high quantile of each part, and more where few were timed. A replay is never taken for
    shorter than its window, however many were cut short. Before any was timed, windows and
    warm-ups take what they must, and an engine's start ``start_s``, or what is rarely exceeded.
    """
    least = pace([], window_s=window_s, warmup_s=warmup_s)
    restarts = [t.timings for t in trials if t.timings and t.fidelity != "live"]
    lives = [t.timings for t in trials if t.timings and t.fidelity == "live"]
    starts = _slow([*restarts, *lives], "start")
    start = starts if starts is not None else start_s
    replay = max(window_s, _slow([*restarts, *lives], "replay") or 0.0)
    warmup, again = _slow(restarts, "warmup"), _slow(lives, "warmup")
    stop = _slow([*restarts, *lives], "stop")
    return Allowance(
        {
            "start": START_S if start is None else start,
            "warmup": least.seconds["warmup"] if warmup is None else warmup,
            "replay": replay,
            "stop": STOP_S if stop is None else stop,
        },
        {
            "warmup": least.live_seconds["warmup"] if again is None else again,
            "replay": replay,
        },
        start is not None,
    )


def _slow(timed: Sequence[Mapping[str, float | None]], part: str) -> float | None:
    """Return what one of slow trials takes of a part, None where none has a time of it."""
    known = [value for each in timed if (value := each.get(f"{part}_s")) is not None]
    return slow(known)


def slow(seconds: Sequence[float]) -> float | None:
    """Return a high quantile of times, with a margin that shrinks as they become many."""
    if not seconds:
        return None
    ranked = sorted(seconds)
    at = math.ceil(SLOW_SHARE * len(ranked)) - 1
    return ranked[at] * (1 + SPREAD / len(ranked))


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each part of a trial is expected to take.

    Attributes:
        seconds: by part, one of ``PARTS``, of a trial that starts an engine.
        measured: False before any trial has told; the seconds are those of windows and warm-ups
            then, without engine starts.
        live_seconds: the same of one that changes the limits of an engine that runs, where it is
            known; else that one has no start or stop, and the rest in common with the others.
    """

    seconds: Mapping[str, float]
    measured: bool
    live_seconds: Mapping[str, float] = field(default_factory=dict)

    def left_s(
        self,
        trials: int,
        *,
        part: str = PARTS[0],
        elapsed_s: float = 0.0,
        live: bool = False,
        live_later: int = 0,
    ) -> float:
        """Return the seconds until ``trials`` trials have ended, the running one among them.

        Args:
            trials: how many, 0 for none.
            part: what the running trial is at.
            elapsed_s: since that part began; what it takes longer than expected counts as
                nothing more to come.
            live: whether the running one is live.
            live_later: how many of the others are.

        Raises:
            ValueError: there is no such part.
        """
        if trials <= 0:
            return 0.0
        at = PARTS.index(part)
        of_live = {**self.seconds, "start": 0.0, "stop": 0.0, **self.live_seconds}
        own = of_live if live else self.seconds
        current = max(0.0, own[part] - elapsed_s)
        later = sum(own[name] for name in PARTS[at + 1 :])
        restarts = max(0, trials - 1 - live_later)
        others = restarts * sum(self.seconds.values()) + live_later * sum(of_live.values())
        return current + later + others


def pace(trials: Sequence[TrialRecord], *, window_s: float, warmup_s: float) -> Pace:
    """Return the mean of each part over the trials of a fidelity that were timed.

    The mean, since many trials together take that many times it, slow ones included. Before
    any was timed, and for a part that none has a time of, it is what the window takes by
    itself: a replay that is not cut short lasts at least as long as its window, a pass of the
    warm-up as long as its share. An engine that was just started gets two passes at least, the
    first one longer; a live trial one, and no start or stop of its own, unless it says so.
    """
    again_s = min(warmup_s, window_s)
    first_s = min(max(warmup_s, FIRST_WARMUP_S), window_s) if warmup_s else 0.0
    least = {"start": 0.0, "warmup": first_s + again_s, "replay": window_s, "stop": 0.0}
    restarts = [t.timings for t in trials if t.timings and t.fidelity != "live"]
    lives = [t.timings for t in trials if t.timings and t.fidelity == "live"]
    whole = [{"start_s": 0.0, "stop_s": 0.0, **_known(each)} for each in lives]
    return Pace(
        {**least, **_means(restarts)},
        measured=bool(restarts or lives),
        live_seconds=_means(whole) if whole else {"warmup": again_s},
    )


def _known(timings: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in timings.items() if value is not None}


def _means(timed: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    seconds = {}
    for name in PARTS:
        known = [value for each in timed if (value := each.get(f"{name}_s")) is not None]
        if known:
            seconds[name] = sum(known) / len(known)
    return seconds
