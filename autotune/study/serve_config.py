"""A file for ``vllm serve --config``, such as ``autotune best`` exports, as engine arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import UsageError
from autotune.user_files import read_small

_OF_THE_SERVER = frozenset(
    (
        "api_key", "chat_template", "config", "disable_log_requests", "enable_log_requests",
        "host", "middleware", "port", "response_role", "root_path", "served_model_name",
        "ssl_certfile", "ssl_keyfile", "tool_call_parser", "uvicorn_log_level",
    )
)  # fmt: skip
"""Options of ``vllm serve`` that are no arguments of the engine."""

_HINT = (
    "name a file that `autotune best --output FILE.yaml` wrote, or that vllm serve --config takes"
)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What such a file says.

    Attributes:
        model: None where it names none.
        engine_args: by their names in vLLM.
        left_out: options of the server, which an engine does not have.
    """

    model: str | None
    engine_args: Mapping[str, Any]
    left_out: tuple[str, ...]


def read_serve_config(path: Path) -> ServeConfig:
    """Read a file for ``vllm serve --config``.

    Dashes are read as underscores, ``no-NAME: true`` as ``NAME`` false, and text that is a JSON
    object as that, as exports write them.

    Raises:
        UsageError: the file cannot be used.
    """
    try:
        content = yaml.safe_load(read_small(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no valid YAML", hint=_HINT) from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} does not hold settings of vllm serve", hint=_HINT)
    named = dict(_argument(str(key), value) for key, value in content.items())
    model = named.pop("model", None) or named.pop("model_tag", None)
    left_out = tuple(sorted(named.keys() & _OF_THE_SERVER))
    engine_args = {name: value for name, value in named.items() if name not in left_out}
    return ServeConfig(None if model is None else str(model), engine_args, left_out)


def _argument(key: str, value: Any) -> tuple[str, Any]:
    name = key.removeprefix("--").replace("-", "_")
    if name.startswith("no_") and value is True:
        return name.removeprefix("no_"), False
    if isinstance(value, str) and value.startswith("{"):
        try:
            return name, json.loads(value)
        except ValueError:
            return name, value
    return name, value
