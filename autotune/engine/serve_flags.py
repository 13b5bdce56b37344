"""What the installed ``vllm serve`` calls each engine argument.

Runs in a process that may import vLLM; the answer is stored with the study, so that an export
needs no vLLM and still speaks to the version that was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json


def describe_flags() -> dict[str, dict[str, str | None]]:
    """Return for each engine argument its ``flag``, ``negative`` flag and ``default``.

    ``flag`` is None where the command has no option for the argument, ``negative`` where no
    option sets it to false; ``default`` is JSON text, None where JSON cannot write it.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    commands = FlexibleArgumentParser().add_subparsers()
    parser = cmd_init()[0].subparser_init(commands)
    actions = {action.dest: action for action in parser._actions}
    return {
        field.name: _describe(field, actions.get(field.name))
        for field in dataclasses.fields(AsyncEngineArgs)
        if not field.name.startswith("_")
    }


def _describe(
    field: dataclasses.Field[object], action: argparse.Action | None
) -> dict[str, str | None]:
    if action is None:
        return {"flag": None, "negative": None, "default": _json(field.default)}
    kebab = field.name.replace("_", "-")
    flags = [flag for flag in action.option_strings if flag.startswith("--")]
    negative = [flag for flag in flags if flag.startswith("--no-") and flag != f"--{kebab}"]
    positive = [flag for flag in flags if flag not in negative]
    if isinstance(action, argparse._StoreFalseAction):
        positive, negative = negative, positive
    return {
        "flag": f"--{kebab}" if f"--{kebab}" in positive else next(iter(positive), None),
        "negative": next(iter(negative), None),
        "default": _json(action.default),
    }


def _json(default: object) -> str | None:
    try:
        return json.dumps(sorted(default) if isinstance(default, set) else default)
    except TypeError:
        return None
