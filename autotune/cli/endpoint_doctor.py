"""``autotune doctor --endpoint``: where the way to a server's tokens ends, if it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from autotune.endpoint_settings import EndpointSettings
    from autotune.engine.endpoint_checks import Check


def check_up_endpoint(name: str, config: Path, *, as_json: bool) -> None:
    """Try an endpoint step by step, and print what each step found.

    Raises:
        UsageError: a setting, key, path or model is wrong; after all was printed.
        EnvironmentFault: nobody answers as a server should; likewise.
    """
    import asyncio
    import json

    from autotune.endpoint_settings import endpoint_named
    from autotune.engine.endpoint import error_of
    from autotune.settings import load_endpoints

    settings = endpoint_named(load_endpoints(config), name, where=str(config))
    checks = asyncio.run(endpoint_checks(name, settings, shown=not as_json))
    if as_json:
        typer.echo(json.dumps(endpoint_json(name, settings, checks), indent=2))
    if checks[-1].fault is not None:
        raise error_of(checks[-1].fault, name)


async def endpoint_checks(name: str, settings: EndpointSettings, *, shown: bool) -> list[Check]:
    """Return all steps, the last one being the first that failed; print each when it is done."""
    from autotune.cli.tables import plain_line
    from autotune.engine.endpoint_checks import check_endpoint

    checks = []
    async for check in check_endpoint(name, settings):
        checks.append(check)
        if shown:
            label = check.name.replace("_", " ")
            typer.echo(plain_line(f"{check.state:8} {label:11} {check.sentence}"))
            if check.hint and check.fault is None:
                typer.echo(plain_line(f"{'':20} {check.hint}"))
    return checks


def endpoint_json(
    name: str, settings: EndpointSettings, checks: Sequence[Check]
) -> dict[str, object]:
    """Return the checkup of an endpoint as plain JSON values."""
    return {
        "endpoint": name,
        "base_url": settings.base_url,
        "model": settings.model,
        "checks": [
            {
                "name": check.name,
                "state": check.state,
                "sentence": check.sentence,
                "hint": check.hint,
            }
            for check in checks
        ],
    }
