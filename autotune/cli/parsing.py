"""What the option parser refuses, in the same words as every other error."""

from __future__ import annotations

import difflib
import re
from typing import Any

import typer

from autotune.errors import UsageError, in_plain_words

REFUSED: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of what the parser refuses. It has no public name: Typer took Click's in."""

_PREFIX = "Value error, "  # Pydantic's, by which newer versions of Typer read values.
_EXTRA = re.compile(r"unexpected extra argument(?:s|\(s\))? \((.*)\)", re.DOTALL)

_NEAR = 0.7
"""As in ``objectives.errors.nearest``, but names of options are short and have words in common."""

_LEAST_PREFIX = 3


def as_usage_error(refused: Any) -> UsageError:
    """Return an exception of class ``REFUSED`` as an error of ours, with a hint.

    A group without a command is answered with its help, on stdout; the error has no message then.
    """
    if refused.ctx is not None and refused.message == refused.ctx.get_help():
        typer.echo(refused.message)
        return UsageError("")
    hint = "" if refused.ctx is None else _unknown_option(refused) or _extra_argument(refused)
    # With a hint of ours, without the parser's own list of options.
    message = refused.message if hint else refused.format_message()
    message = in_plain_words(message.replace(_PREFIX, "").strip())
    return UsageError(message, hint=hint or _help(refused))


def _unknown_option(refused: Any) -> str:
    """Say what was meant by an option that the command does not have, '' for all else."""
    option = getattr(refused, "option_name", None)
    if option is None:
        return ""
    command = refused.ctx.command
    name = option.lstrip("-").replace("-", "_")
    for each in _arguments(command):
        if name in (each.name, (each.metavar or "").lower()):
            return f"it has no name: `{refused.ctx.command_path} {name.upper()}`"
    if close := _near_option(option, _options(command)):
        return f"did you mean {close!r}?"
    if "--engine-arg" in _options(command) and option.startswith("--"):
        return f"for an argument of vLLM write --engine-arg {name}=VALUE; {_help(refused)}"
    return ""


def _near_option(given: str, options: list[str]) -> str:
    """Return the option that is spelt alike or begins so, '' where there is none."""
    word = given.lstrip("-")
    names = {each.lstrip("-"): each for each in options}
    close = difflib.get_close_matches(word, names, n=1, cutoff=_NEAR)
    if len(word) >= _LEAST_PREFIX:
        close += [name for name in names if name.startswith(word)]
    return names[close[0]] if close else ""


def _extra_argument(refused: Any) -> str:
    """Say how what stands alone should have been given, '' if there is no way to tell."""
    found = _EXTRA.search(refused.message)
    if found is None:
        return ""
    word = found[1].split(" ")[0]
    given = refused.ctx.params
    for name, option in (("engine_arg", "--engine-arg"), ("knob", "--knob")):
        for pair in given.get(name) or ():
            if "=" not in pair:
                return f"write it as one word: {option} {pair}={word}"
    # What is a URL may have a password.
    if "--model" in _options(refused.ctx.command) and not given.get("model") and ":/" not in word:
        return f"a model is given with an option: --model {word}"
    return ""


def _options(command: Any) -> list[str]:
    opts = [opt for param in command.params for opt in param.opts]
    return [opt for opt in opts if opt.startswith("--")]


def _arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _help(refused: Any) -> str:
    if refused.ctx is None:
        return "add --help to the command to see what it takes"
    return f"`{refused.ctx.command_path} --help` shows what it takes"
