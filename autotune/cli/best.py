"""``autotune best``: the configuration to deploy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Storage, StudyName


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

    Exit code 3 if nothing keeps the budget. With --budget it also says what is forecast of
    candidates that were never measured.
    """
    import os

    from autotune.cli.files import write_text
    from autotune.cli.foreseen import forecast_of_others
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
        foreseen = [] if budget is None else forecast_of_others(view, repository, trace)
    judgement = view.judgement
    if judgement is None:
        raise UsageError(
            f"study {view.study.name!r} has no finished trial yet",
            hint="autotune trials shows what happened",
        )
    lines = study_verdict(view)
    if judgement.chosen is None:
        raise NothingFeasible(lines[0], hint=" ".join([*lines[1:], *foreseen]))
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
