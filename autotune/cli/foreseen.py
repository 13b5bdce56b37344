"""What forecasts add to a verdict: better candidates that nobody measured, and chance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from autotune.cli.tables import limits
from autotune.errors import AutotuneError
from autotune.forecast.forecast_words import metrics_line, percent, trust_line
from autotune.study.foresight import Foresight, stored_traffic
from autotune.study.screen import Simulations
from autotune.study.view import StudyView
from storage.repository import Repository


def forecast_of_others(view: StudyView, repository: Repository, trace: Path | None) -> list[str]:
    """Return what is forecast of candidates that were not measured, or why nothing is."""
    try:
        foresight = foresight_of(view, repository, trace)
    except AutotuneError as error:
        return [f"No forecasts of other candidates: {error.message}."]
    if not foresight.trusted:
        return [trust_line(foresight.trust)]
    best = foresight.proposal
    if best is None:
        return ["No candidate that was not measured is forecast to be better by much."]
    chance = best.probability
    kept = ""
    if chance is not None:
        kept = f", and keeps the budget with a probability of {percent(chance)}"
    found = metrics_line(best.metrics)
    return [f"Forecast, not measured: {limits(best.candidate)} may be better{kept}: {found}."]


def foresight_of(
    view: StudyView,
    repository: Repository,
    trace: Path | None,
    *,
    simulations: Simulations | None = None,
) -> Foresight:
    """Return forecasts of a stored study; what takes long is said on stderr.

    Args:
        view: the study, judged by the budget that counts.
        repository: has the samples.
        trace: what the study replayed, where it has moved.
        simulations: of this study by this budget, made before; None if there are none.

    Raises:
        AutotuneError: it cannot be forecast.
    """
    return Foresight(
        view,
        stored_traffic(view, trace),
        lambda number: repository.samples(view.study.id, number),
        say=lambda line: typer.echo(line, err=True),
        simulations=simulations,
    )


def last_words_of(
    view: StudyView, repository: Repository, simulations: Simulations | None
) -> list[str]:
    """Return ``last_words`` of a study, nothing where it cannot be forecast.

    ``simulations`` are those of its search, None where it made none.
    """
    try:
        return last_words(foresight_of(view, repository, None, simulations=simulations))
    except AutotuneError:
        return []


def last_words(foresight: Foresight) -> list[str]:
    """Return which limit made the difference, and what random trials would have found.

    Of forecasts that measurements contradict it says only that.
    """
    if not foresight.trusted:
        return [trust_line(foresight.trust)]
    return [*attribution_lines(foresight), *chance_lines(foresight)]


def next_line(foresight: Foresight) -> str:
    """Return which candidate the search would try next, by forecasts that are trusted."""
    if foresight.next is None:
        return "No candidate that was not tried is forecast to be worth a trial."
    return f"The search would try {limits(foresight.next)} next."


def attribution_lines(foresight: Foresight) -> list[str]:
    """Return what each limit does alone, on the way from the baseline to the verdict's."""
    best = foresight.deployed
    if best is None:
        return []
    parts = [_alone(*each) for each in foresight.attribution(best.candidate).items()]
    way = f"from {limits(foresight.study.baseline)} to {limits(best.candidate)}"
    return [f"By forecast, {way}, {'; '.join(parts)}."]


def _alone(name: str, changes: Mapping[str, float] | None) -> str:
    if changes is None:
        return f"{name} alone makes no candidate"
    shown = ", ".join(f"{key} {round(100 * each):+d} %" for key, each in changes.items())
    return f"{name} alone: {shown or 'nothing can be forecast'}"


def chance_lines(foresight: Foresight) -> list[str]:
    """Return what as many random trials would be expected to find, by forecast."""
    best, loss = foresight.deployed, foresight.loss_by_chance()
    if best is None or loss is None:
        return []
    worse = max(0.0, loss - best.loss)
    end = f"would end {worse:.2f} widths of the budget worse on average, by forecast"
    return [f"As many candidates drawn at random {end}."]
