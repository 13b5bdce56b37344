"""Where nothing that was measured keeps a budget: what may, by forecast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.candidates.lattice import cell_key
from autotune.cli.foreseen import foresight_of
from autotune.cli.tables import limits
from autotune.errors import AutotuneError
from autotune.forecast.forecast_words import metrics_line, percent, trust_line
from autotune.study.counted import breaks_for_certain, censored
from autotune.study.foresight import Forecast, Foresight
from objectives.classes import parse_classes

if TYPE_CHECKING:
    from autotune.study.view import StudyView
    from objectives.limits import Budget
    from storage.repository import Repository

_HARDLY = 0.05
"""Probability below which a candidate is not said to keep a budget."""


def likeliest_lines(
    view: StudyView, budget: Budget, repository: Repository, trace: Path | None
) -> list[str]:
    """Return which candidate a search would try for a budget that no measured one keeps.

    Where it would not follow forecasts, or hardly any candidate keeps it, the likeliest to keep
    it. Or why nothing is forecast.

    Args:
        view: the study, judged by ``budget``.
        budget: its limits, with none that is relative.
        repository: has the samples.
        trace: what the study replayed, where it has moved.
    """
    try:
        foresight = foresight_of(view, repository, trace)
    except AutotuneError as error:
        why = f"{error.message}; {error.hint}" if error.hint else error.message
        return [f"No forecasts of other candidates: {why}."]
    likeliest = max(_open(view, budget, foresight), key=_chance, default=None)
    if likeliest is None:
        return ["No candidate is left that was not measured."]
    if not foresight.trusted:
        return [_named(likeliest), trust_line(foresight.trust)]
    if _chance(likeliest) < _HARDLY:
        return [_named(likeliest)]
    # What does the same as one that was measured, or is expected to gain nothing, is not tried.
    proposal = foresight.proposal
    if proposal is None:
        return ["None that was measured keeps it, and no other is forecast to be worth a trial."]
    return [_named(proposal)]


def _open(view: StudyView, budget: Budget, foresight: Foresight) -> Iterator[Forecast]:
    """Yield those of which no trial has shown yet that they break the budget."""
    classes = parse_classes(view.study.spec["classes"])
    out = {
        cell_key(trial.candidate)
        for trial in view.trials
        if trial.state == "infeasible"
        and (censored(trial) is None or breaks_for_certain(trial, budget, classes))
    }
    for each in foresight.forecasts:
        if not each.trials and cell_key(each.candidate) not in out:
            yield each


def _chance(forecast: Forecast) -> float:
    return forecast.probability or 0.0


def _named(best: Forecast) -> str:
    name, chance = limits(best.candidate), _chance(best)
    odds = f"with a probability of {percent(chance)}: {metrics_line(best.metrics)}"
    if chance < _HARDLY:
        return f"None that was measured keeps it, and by forecast hardly any would; {name} {odds}."
    return f"None that was measured keeps it; by forecast {name} may, {odds}."
