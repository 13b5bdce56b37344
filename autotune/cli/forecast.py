"""``autotune forecast``: what a study expects of candidates, budgets and loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Format, OutputFormat, Storage, StudyName

if TYPE_CHECKING:
    from autotune.candidates.lattice import Candidate
    from autotune.study.foresight import Forecast, Foresight
    from autotune.study.view import StudyView

_LEAST_LOAD, _MOST_LOAD = 0.1, 10.0


def forecast(
    *,
    storage: Storage = None,
    study_name: StudyName = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="The trace file of the study, where it has moved.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Judge by these limits instead of the study's.", show_default=False),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(
            help="This one alone, tokens/seqs, and the load that it would hold.",
            show_default=False,
        ),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            help="With --candidate: its metrics at so many times the traffic, 0.1 to 10.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="How many candidates to list.", min=1)] = 10,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Forecast candidates of a study, measured or not, by simulation.

    Starts no engine. What was measured corrects the forecasts.
    """
    import json
    import os

    from autotune.cli.foreseen import foresight_of
    from autotune.cli.words import simulation_lines
    from autotune.errors import UsageError
    from autotune.study.foresight import check_candidate
    from autotune.study.view import load_of, load_view
    from storage.codec import plain
    from storage.database import resolve_url
    from storage.repository import open_repository

    if load is not None and candidate is None:
        raise UsageError("--load needs --candidate", hint="such as --candidate 2048/128")
    if load is not None and not _LEAST_LOAD <= load <= _MOST_LOAD:
        raise UsageError(
            f"--load {load:g}: must be a number from {_LEAST_LOAD:g} to {_MOST_LOAD:g}",
            hint="1 is the traffic that the study replayed, 1.5 is half as much again",
        )
    limits = None if candidate is None else _limits(candidate)
    with open_repository(resolve_url(storage, os.environ), create=False) as repository:
        view = load_view(repository, study_name, budget=budget)
        # A further knob stays as the baseline has it.
        chosen = None
        if limits is not None:
            chosen = {**view.study.fingerprint["baseline"], **limits}
            check_candidate(view, chosen)
        for line in simulation_lines(view.study):
            typer.echo(line, err=True)
        if (studied := load_of(view.study)) is not None:
            said = f"Today's traffic is what the study replayed: load {studied.words}."
            typer.echo(said, err=True)
        foresight = foresight_of(view, repository, trace)
    if output_format is OutputFormat.JSON:
        body = plain(_json(view, foresight, chosen, load, top), name="forecast")
        typer.echo(json.dumps(body, allow_nan=False))
    else:
        typer.echo("\n".join(_lines(foresight, chosen, load, top)))


def _limits(text: str) -> Candidate:
    import re

    from autotune.candidates.lattice import SEQS, TOKENS
    from autotune.errors import UsageError

    found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise UsageError(
            f"--candidate {text!r} is not tokens/seqs",
            hint="max_num_batched_tokens and max_num_seqs, such as --candidate 2048/128",
        )
    return {TOKENS: int(found[1]), SEQS: int(found[2])}


def _json(
    view: StudyView,
    foresight: Foresight,
    chosen: Candidate | None,
    load: float | None,
    top: int,
) -> dict[str, object]:
    from autotune.candidates.lattice import plain_values
    from autotune.study.foresight import described
    from autotune.study.view import label

    found: dict[str, object] = {
        **label(view.study),
        "study": view.study.name,
        "budget": foresight.study.budget.text,
        "trust": foresight.trust,
        "step_time_error": foresight.looked.simulations.times.error,
    }
    if chosen is None:
        listed = described(foresight.forecasts, top, foresight.next)
        following = None if foresight.next is None else plain_values(foresight.next)
        return {**found, "next": following, "forecasts": [each.to_json() for each in listed]}
    found["forecast"] = foresight.of(chosen).to_json()
    found["holds_up_to_load"] = foresight.holds_up_to(chosen)
    if load is not None:
        metrics = foresight.at_load(chosen, load)
        broken = foresight.broken(metrics)
        found["at_load"] = {"load": load, "metrics": metrics, "broken": broken}
    return found


def _lines(
    foresight: Foresight, chosen: Candidate | None, load: float | None, top: int
) -> list[str]:
    from autotune.cli.foreseen import last_words, next_line
    from autotune.cli.tables import budget_text
    from autotune.forecast.forecast_words import at_load_line, judged_line, load_line, trust_line
    from autotune.study.foresight import MOST_LOAD, described

    listed = (
        described(foresight.forecasts, top, foresight.next)
        if chosen is None
        else [foresight.of(chosen)]
    )
    lines = [judged_line(budget_text(foresight.study.budget)), *_table(foresight, listed)]
    lines += ["", trust_line(foresight.trust)]
    if chosen is None:
        # Of forecasts that measurements contradict nothing else is said.
        told = [next_line(foresight), *last_words(foresight)] if foresight.trusted else []
        return [*lines, *told]
    if foresight.study.budget.limits:
        lines.append(load_line(foresight.holds_up_to(chosen), MOST_LOAD))
    if load is not None:
        metrics = foresight.at_load(chosen, load)
        lines.append(at_load_line(load, metrics, foresight.broken(metrics)))
    return lines


def _table(foresight: Foresight, listed: list[Forecast]) -> list[str]:
    """Return a table, on a narrow screen without objectives, or a block for each candidate."""
    from autotune.cli.tables import console
    from autotune.forecast.forecast_words import table

    following, width = foresight.next, console().width
    named = [(each, "next" if each.candidate == following else each.source) for each in listed]
    keys = list(listed[0].metrics)
    # Limits come first.
    for count in range(len(keys), max(1, foresight.looked.goal.limits.size) - 1, -1):
        lines = table(
            [
                (
                    each.candidate,
                    {key: each.metrics[key] for key in keys[:count]},
                    each.probability,
                    source,
                )
                for each, source in named
            ]
        )
        if max(map(len, lines)) <= width:
            return lines
    return [line for each, source in named for line in _block(each, source, width)]


def _block(forecast: Forecast, source: str, width: int) -> list[str]:
    """Return a forecast where there is no room for a table."""
    from autotune.cli.tables import limits, stacked
    from autotune.forecast.forecast_words import metrics_line, percent

    parts = [metrics_line({key: bounds}) for key, bounds in forecast.metrics.items()]
    if forecast.probability is not None:
        parts.append(f"keeps budget {percent(forecast.probability, short=True)}")
    return stacked(f"{limits(forecast.candidate)} {source}", parts, width)
