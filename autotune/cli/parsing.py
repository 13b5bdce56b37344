"""What the option parser refuses, in the same words as every other error."""

from __future__ import annotations

from typing import Any

import typer

from autotune.errors import UsageError
from objectives.errors import nearest

REFUSED: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of what the parser refuses. It has no public name: Typer took Click's in."""

_PREFIX = "Value error, "  # Pydantic's, by which newer versions of Typer read values.


def as_usage_error(refused: Any) -> UsageError:
    """Return an exception of class ``REFUSED`` as an error of ours, with a hint."""
    hint = _nearest_option(refused)
    # With a hint of ours, without the parser's own list of options.
    message = refused.message if hint else refused.format_message()
    return UsageError(message.replace(_PREFIX, "").strip(), hint=hint or _help(refused))


def _nearest_option(refused: Any) -> str:
    """Return ``did you mean '--x'?`` for an option that the command does not have."""
    name = getattr(refused, "option_name", None)
    if name is None or refused.ctx is None:
        return ""
    known = [each for param in refused.ctx.command.params for each in param.opts]
    return nearest(name, [each for each in known if each.startswith("--")])


def _help(refused: Any) -> str:
    if refused.ctx is None:
        return "add --help to the command to see what it takes"
    return f"`{refused.ctx.command_path} --help` shows what it takes"
