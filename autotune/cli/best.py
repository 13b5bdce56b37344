"""``autotune best``: the configuration to deploy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import OtherBudget, Storage, StudyName

if TYPE_CHECKING:
    from autotune.study.judgement import Judgement
    from autotune.study.view import StudyView
    from storage.repository import Repository


_SEE_TRIALS = "autotune trials shows what happened"


class ExportFormat(StrEnum):
    """The forms of ``autotune.export``, named here so that help stays light."""

    YAML = "yaml"
    ARGS = "args"
    JSON = "json"
    ENV = "env"


def best(
    *,
    storage: Storage = None,
    study_name: StudyName = None,
    budget: OtherBudget = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="With --budget: the trace file of the study, where it has moved.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="yaml for `vllm serve --config`, args for a command line, json, or env.",
        ),
    ] = ExportFormat.YAML,
    output: Annotated[
        Path | None,
        typer.Option(help="Write to this file, on success alone. [default: standard output]"),
    ] = None,
) -> None:
    """Export the best configuration with its evidence.

    Exit code 3 if nothing keeps the budget, or what does was measured live only. With --budget the
    whole verdict goes to stderr, with what is forecast of candidates that were never measured.
    """
    import os

    from autotune.cli.best_words import verdict_and_advice
    from autotune.cli.caveats import few_requests_lines
    from autotune.cli.files import write_text
    from autotune.cli.holdout_words import holdout_words
    from autotune.cli.words import simulation_lines
    from autotune.errors import NothingFeasible, UsageError
    from autotune.export.render import render
    from autotune.study.view import load_view, make_export
    from autotune.user_files import check_destination
    from storage.database import resolve_url
    from storage.repository import open_repository

    if trace is not None and budget is None:
        raise UsageError(
            "--trace needs --budget",
            hint="it is for forecasts under another budget; what was measured needs no trace",
        )
    if output is not None:
        check_destination(output)
    with open_repository(resolve_url(storage, os.environ), create=False) as repository:
        view = load_view(repository, study_name, budget=budget)
        judgement = view.judgement
        if judgement is None:
            raise UsageError(
                f"study {view.study.name!r} has no finished trial yet",
                hint=_SEE_TRIALS,
            )
        (headline, *reasons), advice = verdict_and_advice(view, judgement, budget)
        short = few_requests_lines(int(view.study.spec["requests"]))
        held = holdout_words(view, command=_command(budget))
        if budget is not None:
            told = reasons
            if judgement.chosen is not None:
                told = [*held.first, headline, *reasons, *held.then, *advice]
            _say([*simulation_lines(view.study), *short, *told])
            _say(_foreseen(view, judgement, repository, trace))
            reasons = []
    if judgement.chosen is None:
        hint = " ".join([*reasons, *advice]).removeprefix("Next: ")
        raise NothingFeasible(headline, hint=hint or _SEE_TRIALS)
    text = render(
        make_export(view, judgement.chosen),
        output_format.value,
        flags=view.study.spec["flags"],
    )
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
    if budget is None:
        _say([*simulation_lines(view.study), *short, *held.first, headline, *held.then])
    if output is not None:
        _say([f"wrote {output}"])


def _command(budget: str | None) -> str:
    return "the same autotune tune" + ("" if budget is None else f" with --budget '{budget}'")


def _say(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line, err=True)


def _foreseen(
    view: StudyView, judgement: Judgement, repository: Repository, trace: Path | None
) -> list[str]:
    """Return what forecasts add to a verdict under another budget."""
    from autotune.cli.foreseen import forecast_of_others
    from autotune.cli.likeliest import likeliest_lines

    nothing_keeps_it = judgement.chosen is None and judgement.unconfirmed is None
    if nothing_keeps_it and judgement.budget.limits:
        return likeliest_lines(view, judgement.budget, repository, trace)
    return forecast_of_others(view, repository, trace)
