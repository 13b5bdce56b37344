"""``autotune report``: what a night brought, on one screen."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import OtherBudget, Storage, StudyName

if TYPE_CHECKING:
    from autotune.study.report import Report
    from storage.repository import Repository


class ReportFormat(StrEnum):
    """How a report is written."""

    TEXT = "text"
    JSON = "json"


def report(
    *,
    storage: Storage = None,
    study_name: StudyName = None,
    budget: OtherBudget = None,
    output_format: Annotated[
        ReportFormat,
        typer.Option("--format", help="text for one screen of 80 columns, or json."),
    ] = ReportFormat.TEXT,
) -> None:
    """Say what a night brought, on one screen.

    Verdict, gain over the baseline, cost, what failed, and what to run next.
    """
    import json
    import os

    from autotune.cli.report_words import next_lines, report_lines, verdict_lines
    from autotune.study.report import report_json
    from storage.codec import plain
    from storage.database import resolve_url
    from storage.repository import open_repository

    url = resolve_url(storage, os.environ)
    with open_repository(url, create=False) as repository:
        made = _made(repository, url, study_name, budget)
    if output_format is ReportFormat.JSON:
        body = report_json(
            made, verdict=verdict_lines(made, budget), advice=next_lines(made, budget)
        )
        typer.echo(json.dumps(plain(body, name="report"), indent=2, allow_nan=False))
        return
    typer.echo("\n".join(report_lines(made, budget, _place(storage, study_name))))


def _made(repository: Repository, url: str, study_name: str | None, budget: str | None) -> Report:
    from autotune.study.doctor.holders import is_worked_on
    from autotune.study.report import make_report
    from autotune.study.view import load_view
    from storage.events import read_events

    view = load_view(repository, study_name, budget=budget)
    return make_report(
        view,
        read_events(url, view.study.id),
        lambda number: repository.samples(view.study.id, number),
        working=is_worked_on(url, view.study.name),
    )


def _place(storage: str | None, study_name: str | None) -> list[str]:
    """Return the options that name this study to another command; never a password."""
    from storage.masking import mask_url

    named = [] if storage is None else ["--storage", mask_url(storage)]
    return named + ([] if study_name is None else ["--study-name", study_name])
