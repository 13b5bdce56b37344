"""Shell words for people's terminals and scripts: the formats ``args`` and ``env``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from autotune.errors import UsageError
from autotune.export.document import Export
from autotune.export.header import header
from autotune.export.options import Options, model_words, words

_UNNAMED = "the model to serve"


def render_args(export: Export, options: Options) -> str:
    """Return one runnable ``vllm serve`` line below its header."""
    model = _join(model_words(export.model))
    use = "run the line below" if model else "set MODEL, then run the line below"
    lines = header(export, options.implied, use=use)
    # A shell refuses to run the line while the variable is not set.
    line = ["vllm serve", model or f'"${{MODEL:?{_UNNAMED}}}"', _join(command_words(options))]
    return "\n".join([*lines, " ".join(filter(None, line))]) + "\n"


def render_env(export: Export, options: Options) -> str:
    """Return assignments that ``sh`` can source.

    ``AUTOTUNE_VLLM_ARGS`` holds the options as shell words, for
    ``eval "vllm serve \\"\\$AUTOTUNE_MODEL\\" $AUTOTUNE_VLLM_ARGS"``.
    """
    model = model_words(export.model)
    variable = "$AUTOTUNE_MODEL" if model else f"${{AUTOTUNE_MODEL:?{_UNNAMED}}}"
    use = f'source this file, then eval "vllm serve \\"\\{variable}\\" $AUTOTUNE_VLLM_ARGS"'
    use = use if model else f"set AUTOTUNE_MODEL, {use}"
    variables = dict(zip(["MODEL"], model, strict=False))
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
