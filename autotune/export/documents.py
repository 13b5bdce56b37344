"""Files for programs: ``yaml`` for ``vllm serve --config``, ``json`` for anything else."""

from __future__ import annotations

import json
import sys

import yaml

from autotune.errors import UsageError
from autotune.export.document import Export
from autotune.export.header import header
from autotune.export.options import Option, Options, model_words, stands_alone
from autotune.export.shell import command_words
from storage.codec import plain


def render_yaml(export: Export, options: Options) -> str:
    """Return a file that ``vllm serve --config`` takes unchanged.

    vLLM's loader drops every ``key: false``: it looks for the ``--no-`` form in the parser of
    the bare ``vllm`` command, which has none. False is therefore ``no-key: true``. Keys carry
    dashes as the command's options do. Dictionaries are JSON text, since older loaders hand
    nested YAML over as Python's notation.
    """
    model = model_words(export.model)
    use = "vllm serve --config FILE.yaml" if model else "vllm serve MODEL --config FILE.yaml"
    settings = {**dict(zip(["model"], model, strict=False)), **dict(map(_entry, options.given))}
    text = yaml.safe_dump(settings, sort_keys=False, width=sys.maxsize)
    return "\n".join([*header(export, options.implied, use=use), text])


def render_json(export: Export, options: Options) -> str:
    """Return one object; ``args`` are the words that follow ``vllm serve``.

    Without a model they begin with the options.
    """
    document = {
        "model": export.model,
        "candidate": dict(export.candidate),
        "metrics": dict(export.metrics),
        "intervals": {name: list(ends) for name, ends in export.intervals.items()},
        "baseline": None if export.baseline is None else dict(export.baseline),
        "verdict": None if export.verdict is None else dict(export.verdict),
        "provenance": dict(export.provenance),
        "engine_args": dict(export.engine_args),
        "args": [*model_words(export.model), *command_words(options)],
    }
    return json.dumps(plain(document, name="export"), indent=2, allow_nan=False) + "\n"


def _entry(option: Option) -> tuple[str, object]:
    value = option.value
    if isinstance(value, str | float) and not stands_alone(str(value)):
        raise UsageError(
            f"A configuration file cannot say {option.name}={value!r}.",
            hint="vLLM would read the value as an option; use --format args.",
        )
    key = option.flag.removeprefix("--")
    return key, json.dumps(value) if isinstance(value, dict) else value
