"""``autotune studies``: what is in the database."""

from __future__ import annotations

from autotune.cli.options import Format, OutputFormat, Storage


def studies(*, storage: Storage = None, output_format: Format = OutputFormat.TABLE) -> None:
    """List the studies in the database, the most recent first."""
    import json
    import os
    from dataclasses import asdict

    import typer

    from autotune.cli.tables import console, plain_line
    from storage.database import resolve_url
    from storage.repository import open_repository

    with open_repository(resolve_url(storage, os.environ), create=False) as repository:
        found = repository.studies()
    if output_format is OutputFormat.JSON:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    from rich import box
    from rich.table import Table

    table = Table("study", "state", "trials", "updated", box=box.SIMPLE_HEAD, pad_edge=False)
    for each in found:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(each.trials.items()))
        table.add_row(plain_line(each.name), each.state, counts, each.updated_at)
    console().print(table)
