"""How the winner did on traffic that is held out, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cli.tables import figure, limits
from autotune.study.held import KEY
from autotune.study.view import confirmed_on_held
from autotune.traffic.holdout import Holdout
from objectives.statistics import requests_needed

if TYPE_CHECKING:
    from autotune.study.held import Confirmed, HeldResult
    from autotune.study.view import StudyView
    from objectives.limits import Limit


@dataclass(frozen=True, slots=True)
class HoldoutWords:
    """Sentences for the beginning of a summary, and those for its place among the reasons."""

    first: tuple[str, ...] = ()
    then: tuple[str, ...] = ()


NOTHING = HoldoutWords()
"""Of a study that holds nothing out."""


def holdout_words(view: StudyView, *, command: str) -> HoldoutWords:
    """Return what the winner's replays of held-out traffic say: first of all if it is bad.

    Args:
        view: the study, by whatever budget.
        command: that measures what is missing.
    """
    if KEY not in view.study.spec or view.judgement is None:
        return NOTHING
    confirmed = confirmed_on_held(view)
    if confirmed is None:
        return NOTHING
    if not confirmed.winner.replays:
        return _unmeasured(confirmed, command)
    compared = [each for each in view.judgement.names[:-1] if not confirmed.budget.limits]
    parts = "; ".join(_parts(confirmed, compared))
    replayed = "" if len(confirmed.winner.replays) > 1 else ", replayed once"
    there = f"n {_part(confirmed)} ({confirmed.part.requests} requests{replayed}): {parts}."
    if confirmed.met is not False:
        return HoldoutWords(then=(f"O{there}", *_too_few(confirmed, compared)))
    return HoldoutWords(first=(f"Not confirmed o{there}", *_instead(confirmed)))


def _part(confirmed: Confirmed) -> str:
    return (
        f"the last {Holdout(confirmed.part.share).words} of the window, which nothing was "
        "chosen on"
    )


def _unmeasured(confirmed: Confirmed, command: str) -> HoldoutWords:
    name, failure = limits(confirmed.winner.candidate), confirmed.winner.failure
    where = f"{_part(confirmed)} ({confirmed.part.requests} requests)"
    if failure is None:
        return HoldoutWords(then=(f"Not yet confirmed on {where}: {command} does that.",))
    told = f"{name} could not be measured there: {failure['class']}, {failure['evidence']}"
    if confirmed.winner.cannot_run:
        return HoldoutWords(first=(f"Not confirmed on {where}: {told}.",))
    return HoldoutWords(then=(f"Not confirmed on {where}: {told}; {command} tries again.",))


def _instead(confirmed: Confirmed) -> Iterator[str]:
    """Say what a broken limit there means for what is to be deployed."""
    if confirmed.of_baseline:
        yield "That is your baseline: loosen --budget, lighten the load, or give more hardware."
    elif confirmed.met_by(confirmed.baseline):
        yield "The baseline keeps the budget there: stay with it, or tune on a longer --window."
    elif confirmed.met_by(confirmed.baseline) is False:
        yield "The baseline breaks it there as well: that traffic is harder, whatever is chosen."


def _too_few(confirmed: Confirmed, compared: list[str]) -> Iterator[str]:
    """Say for which values the part that is held out is too short to bound them from above."""
    count = confirmed.part.requests
    needs = [
        f"{key} needs {needed}"
        for key in [*(limit.key for limit in confirmed.budget.limits), *compared]
        if (needed := requests_needed(key.partition("_")[2].partition("@")[0])) and needed > count
    ]
    if needs:
        yield f"So few requests give no upper bound there: {', '.join(needs)}."


def _parts(confirmed: Confirmed, compared: list[str]) -> Iterator[str]:
    """Yield how values stand, those that break a limit first; without limits, ``compared``."""
    own, other = confirmed.winner, None if confirmed.of_baseline else confirmed.baseline
    if count := own.failed_requests:
        yield f"{count} {'request' if count == 1 else 'requests'} failed"
    for limit in sorted(confirmed.budget.limits, key=lambda each: bool(own.met(each))):
        value = f"{limit.key} {figure(own.metrics.get(limit.key))} ms"
        allowed = f"{figure(limit.limit_ms)} allowed: {_word(own.met(limit))}"
        yield f"{value} of {allowed}{_beside(other, limit.key, limit)}"
    for key in compared:
        yield f"{key} {figure(own.metrics.get(key))} ms{_beside(other, key)}"


def _beside(other: HeldResult | None, key: str, limit: Limit | None = None) -> str:
    if other is None:
        return ""
    if not other.replays:
        return " (baseline not measured)"
    word = "" if limit is None else f": {_word(other.met(limit))}"
    return f" (baseline {figure(other.metrics.get(key))}{word})"


def _word(met: bool | None) -> str:
    return "met" if met else "broken"
