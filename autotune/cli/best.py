"""``autotune best``: the configuration to deploy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Storage, StudyName

if TYPE_CHECKING:
    from autotune.study.view import StudyView
    from storage.repository import Repository


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
    budget: Annotated[
        str | None,
        typer.Option(
            help="Judge what is stored by these limits instead; nothing is measured.",
            show_default=False,
        ),
    ] = None,
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

    Exit code 3 if nothing keeps the budget, or what does was measured live only. With --budget it
    also says what is forecast of candidates that were never measured.
    """
    import os

    from autotune.cli.files import write_text
    from autotune.cli.words import simulation_lines, study_verdict
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
        foreseen = [] if budget is None else _foreseen(view, repository, trace)
    judgement = view.judgement
    if judgement is None:
        raise UsageError(
            f"study {view.study.name!r} has no finished trial yet",
            hint="autotune trials shows what happened",
        )
    lines = study_verdict(view)
    if judgement.chosen is None:
        raise NothingFeasible(lines[0], hint=" ".join([*foreseen, *lines[1:]]))
    text = render(
        make_export(view, judgement.chosen),
        output_format.value,
        flags=view.study.spec["flags"],
    )
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
    for line in [*simulation_lines(view.study), lines[0], *foreseen]:
        typer.echo(line, err=True)
    if output is not None:
        typer.echo(f"wrote {output}", err=True)


def _foreseen(view: StudyView, repository: Repository, trace: Path | None) -> list[str]:
    """Return what forecasts add to a verdict under another budget."""
    from autotune.cli.foreseen import forecast_of_others
    from autotune.cli.likeliest import likeliest_lines

    judgement = view.judgement
    if judgement is None:
        return []
    nothing_keeps_it = judgement.chosen is None and judgement.unconfirmed is None
    if nothing_keeps_it and judgement.budget.limits:
        return likeliest_lines(view, judgement.budget, repository, trace)
    return forecast_of_others(view, repository, trace)
