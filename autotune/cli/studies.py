"""``autotune studies``: what is in the database."""

from __future__ import annotations

from autotune.cli.options import Format, OutputFormat, Storage

_HEADING = ("study", "state", "trials", "updated (UTC)")


def studies(*, storage: Storage = None, output_format: Format = OutputFormat.TABLE) -> None:
    """List the studies in the database, the most recent first."""
    import json
    import os
    from dataclasses import asdict

    import typer

    from autotune.cli.tables import console, plain_line, ruled
    from autotune.study.view import label
    from storage.database import resolve_url
    from storage.repository import open_repository

    with open_repository(resolve_url(storage, os.environ), create=False) as repository:
        found = repository.studies()
        labels = [label(repository.study(each.name)) for each in found]
    if output_format is OutputFormat.JSON:
        listed = [asdict(each) | named for each, named in zip(found, labels, strict=True)]
        typer.echo(json.dumps(listed, indent=2))
        return
    rows = [
        (
            plain_line(each.name),
            f"{each.state}, simulated" if named else each.state,
            ", ".join(f"{count} {state}" for state, count in sorted(each.trials.items())) or "-",
            _minute(each.updated_at),
        )
        for each, named in zip(found, labels, strict=True)
    ]
    screen = console()
    for line in ruled(_HEADING, rows, width=screen.width):
        screen.print(line, soft_wrap=True)


def _minute(at: str) -> str:
    """Return a stored time, which is in UTC, to the minute."""
    from datetime import UTC, datetime

    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M")
