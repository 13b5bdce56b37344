"""Asks the installed vLLM, in a process of its own, what its command line makes of an export.

``flags`` prints the facts of ``describe_flags``; ``parse ARGUMENT...`` prints what the parser of
``vllm serve`` hands to the engine when it is given these words.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from autotune.engine.serve_flags import describe_flags


def parse(words: list[str]) -> dict[str, object]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # As the command itself does: the configuration file is read by the outer parser.
    command = FlexibleArgumentParser()
    cmd_init()[0].subparser_init(command.add_subparsers(dest="subparser"))
    namespace = command.parse_args(words)
    values = {
        field.name: getattr(namespace, field.name)
        for field in dataclasses.fields(AsyncEngineArgs)
        if hasattr(namespace, field.name)
    }
    return values | {"model": namespace.model_tag or namespace.model}


def as_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    return sorted(value) if isinstance(value, set) else str(value)


def main() -> None:
    answer = describe_flags() if sys.argv[1] == "flags" else parse(sys.argv[2:])
    sys.stdout.write("\n" + json.dumps(answer, default=as_json))


if __name__ == "__main__":
    main()
