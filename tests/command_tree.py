"""The commands and options of ``autotune``, as they are declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from autotune.cli.main import app

COMMAND: Any = get_command(app)


def commands(command: Any = COMMAND, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command with its words, groups before their members."""
    yield " ".join(words), command
    for name, member in getattr(command, "commands", {}).items():
        yield from commands(member, (*words, name))


def options_of(command: Any) -> set[str]:
    return {name for each in command.params for name in each.opts if name.startswith("--")}
