"""``autotune trials``: every measurement of a study."""

from __future__ import annotations

from autotune.cli.options import Format, OutputFormat, Storage, StudyName


def trials(
    *,
    storage: Storage = None,
    study_name: StudyName = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """List a study's trials with metrics and what held them back."""
    import json
    import os

    import typer

    from autotune.cli.tables import console
    from autotune.cli.trial_table import print_trials
    from autotune.cli.words import simulation_lines, state_line
    from autotune.study.view import load_view, trial_json
    from storage.codec import plain
    from storage.database import resolve_url
    from storage.repository import open_repository

    with open_repository(resolve_url(storage, os.environ), create=False) as repository:
        view = load_view(repository, study_name)
    if output_format is OutputFormat.JSON:
        rows = [plain(trial_json(view, trial), name="trial") for trial in view.trials]
        typer.echo(json.dumps(rows, indent=2, allow_nan=False))
    else:
        typer.echo("\n".join([state_line(view), *simulation_lines(view.study)]))
        print_trials(view, console())
