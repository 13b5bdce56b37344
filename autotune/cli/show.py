"""``autotune show``: one trial, or the study in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Format, OutputFormat, Storage, StudyName

if TYPE_CHECKING:
    from autotune.study.view import StudyView
    from storage.records import TrialRecord


def show(
    trial: Annotated[
        int | None, typer.Argument(help="Number of a trial.", show_default="the study's verdict")
    ] = None,
    *,
    storage: Storage = None,
    study_name: StudyName = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Show one trial in full, or without a number the verdict of the study."""
    import json
    import os

    from autotune.cli.words import verdict_lines
    from autotune.study.judgement import verdict_json
    from autotune.study.view import load_view
    from storage.codec import plain
    from storage.database import resolve_url
    from storage.repository import open_repository

    with open_repository(resolve_url(storage, os.environ), create=False) as repository:
        view = load_view(repository, study_name)
        record = None if trial is None else repository.trial(view.study.id, trial)
    if record is not None:
        _show_trial(view, record, output_format)
        return
    if output_format is OutputFormat.JSON:
        verdict = None if view.judgement is None else verdict_json(view.judgement)
        body = {"study": view.study.name, "state": view.study.state, "verdict": verdict}
        typer.echo(json.dumps(plain(body, name="verdict"), indent=2, allow_nan=False))
    elif view.judgement is None:
        typer.echo(f"Study {view.study.name!r} has no finished trial yet.")
    else:
        typer.echo("\n".join(verdict_lines(view.judgement)))


def _show_trial(view: StudyView, record: TrialRecord, output_format: OutputFormat) -> None:
    import json

    from autotune.cli.tables import limits
    from autotune.study.view import trial_json
    from storage.codec import plain

    body = {**trial_json(view, record), "engine": record.engine, "intervals": record.intervals}
    if output_format is OutputFormat.JSON:
        typer.echo(json.dumps(plain(body, name="trial"), indent=2, allow_nan=False))
        return
    typer.echo(
        f"Trial {record.number}: {limits(record.candidate)}, {record.phase}, {record.state}"
    )
    if record.failure_class is not None:
        typer.echo(f"{record.failure_class}: {record.failure_evidence}")
    if record.diagnosis is not None:
        knob = record.diagnosis["next_knob"] or "nothing to move"
        typer.echo(f"{record.diagnosis['code']}: {record.diagnosis['reason']}; {knob}.")
    for name, value in (body["metrics"] or {}).items():
        low, high = (record.intervals or {}).get(name, (None, None))
        bounds = "" if low is None else f"   {_shown(low)} to {_shown(high)}"
        typer.echo(f"{name:32} {_shown(value):>12}{bounds}")
    for name, seconds in (record.timings or {}).items():
        typer.echo(f"{name:32} {_shown(seconds):>12}")
    typer.echo(f"engine log: {record.log_path}")


def _shown(value: float | None) -> str:
    from autotune.cli.tables import figure

    return figure(value, 3)
