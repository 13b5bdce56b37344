"""One entry for all formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.export.document import Export, FlagFacts, Format
from autotune.export.documents import render_json, render_yaml
from autotune.export.options import Options, resolve
from autotune.export.shell import render_args, render_env

_RENDERERS: Mapping[Format, Callable[[Export, Options], str]] = {
    "args": render_args,
    "yaml": render_yaml,
    "json": render_json,
    "env": render_env,
}


def render(export: Export, format: Format, *, flags: FlagFacts | None = None) -> str:  # noqa: A002
    """Return the export as text that ends with a newline.

    ``flags`` are the facts stored with the study; None falls back to vLLM's naming rule
    (dashes for underscores, ``--no-`` before a switch that is off).

    Raises:
        UsageError: the format cannot say a value without changing it.
    """
    return _RENDERERS[format](export, resolve(export.engine_args, flags))
