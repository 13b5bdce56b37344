"""Shell words for people's terminals and scripts: the formats ``args`` and ``env``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from autotune.errors import UsageError
from autotune.export.document import Export
from autotune.export.header import header
from autotune.export.options import Options, model_word, words


def render_args(export: Export, options: Options) -> str:
    """Return one runnable ``vllm serve`` line below its header."""
    line = ["vllm", "serve", model_word(export.model), *command_words(options)]
    lines = header(export, options.implied, use="run the line below")
    return "\n".join([*lines, _join(line)]) + "\n"


def render_env(export: Export, options: Options) -> str:
    """Return assignments that ``sh`` can source.

    ``AUTOTUNE_VLLM_ARGS`` holds the options as shell words, for
    ``eval "vllm serve \\"\\$AUTOTUNE_MODEL\\" $AUTOTUNE_VLLM_ARGS"``.
    """
    use = 'source this file, then eval "vllm serve \\"\\$AUTOTUNE_MODEL\\" $AUTOTUNE_VLLM_ARGS"'
    variables = {"MODEL": model_word(export.model)}
    for option in options.given:
        if option.name in export.candidate:
            value = export.candidate[option.name]
            text = value if isinstance(value, str) else json.dumps(value)
            variables[option.name.upper()] = text
    variables["VLLM_ARGS"] = _join(command_words(options))
    lines = header(export, options.implied, use=use)
    lines += [f"AUTOTUNE_{name}={_join([text])}" for name, text in variables.items()]
    return "\n".join(lines) + "\n"


def command_words(options: Options) -> list[str]:
    """Return the words of all options, in order."""
    return [word for option in options.given for word in words(option)]


def _join(line: Iterable[str]) -> str:
    """Quote words; refuse what a terminal would act upon when the line is pasted."""
    line = list(line)
    for word in line:
        if not word.isprintable():
            raise UsageError(
                f"{word!r} holds characters that cannot be shown.",
                hint="Use --format yaml or json, which can escape them.",
            )
    return shlex.join(line)
