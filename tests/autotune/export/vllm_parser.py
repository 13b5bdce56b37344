"""Asks the installed vLLM, in a process of its own, what its command line makes of an export.

Without standard input it prints the facts of ``describe_flags``. Given a JSON list of command
lines (lists of words) it prints what the parser of ``vllm serve`` hands to the engine for each.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from autotune.engine.serve_flags import describe_flags


def parse(lines: list[list[str]]) -> list[dict[str, object]]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # As the command itself does: the configuration file is read by the outer parser.
    command = FlexibleArgumentParser()
    cmd_init()[0].subparser_init(command.add_subparsers(dest="subparser"))
    names = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    parsed = [vars(command.parse_args(words)) for words in lines]
    return [
        {name: value for name, value in values.items() if name in names}
        | {"model": values["model_tag"] or values["model"]}
        for values in parsed
    ]


def as_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    return sorted(value) if isinstance(value, set) else str(value)


def main() -> None:
    question = sys.stdin.read()
    answer = parse(json.loads(question)) if question else describe_flags()
    sys.stdout.write("\n" + json.dumps(answer, default=as_json))


if __name__ == "__main__":
    main()
