"""Finding and reading the ``config.json`` of a model, without vLLM."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from autotune.errors import EnvironmentFault, UsageError
from autotune.user_files import read_small

CONFIG_NAME = "config.json"

_IS_IT_ONE = "is it a config.json of a model?"
_NAME_A_FOLDER = "name a folder with a config.json, demo:tiny-llama, or a model of the hub"


def load_config(model: str, *, ask_hub: bool = True) -> dict[str, Any]:
    """Return the config of a model folder, else of a model of the Hugging Face hub.

    The hub is asked once. Where it has no answer, or may not be asked (``HF_HUB_OFFLINE``), its
    local cache is; so it is for what looks like a path: more than one slash, a dot in front, or
    a folder here that the name begins with.

    Args:
        model: a folder or the name of a model.
        ask_hub: False for the local cache alone.

    Raises:
        UsageError: the name cannot be that of a model.
        EnvironmentFault: there is no such config, or it cannot be read.
    """
    if not model.strip():
        raise UsageError("the model has no name", hint=_NAME_A_FOLDER)
    folder = _in_folder(Path(model))
    return _read(folder or _from_hub(model, ask=ask_hub and not _looks_like_path(model)))


def _in_folder(folder: Path) -> Path | None:
    """Return the config of a folder, None if there is no such folder."""
    try:
        is_folder, is_file = folder.is_dir(), folder.is_file()
    except OSError:  # Too long for the name of a file.
        return None
    if is_file:
        raise EnvironmentFault(f"{folder} is a file", hint="name the folder that it lies in")
    if is_folder and not (folder / CONFIG_NAME).is_file():
        raise EnvironmentFault(
            f"{folder} has no {CONFIG_NAME}", hint="is it the folder of a model?"
        )
    return folder / CONFIG_NAME if is_folder else None


def _looks_like_path(model: str) -> bool:
    """Whether a name that is no folder was meant as one."""
    first, slash, rest = model.partition("/")
    if not slash:
        return False
    return first in ("", ".", "..", "~") or not rest or "/" in rest or Path(first).is_dir()


def _from_hub(model: str, *, ask: bool) -> Path:
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
    except ImportError as error:
        raise EnvironmentFault(
            f"there is no folder {model}, and no huggingface_hub here to look {model} up with",
            hint=_NAME_A_FOLDER,
        ) from error
    # Its HTTP client, and the errors of that, differ between versions.
    bases = (each for each in HfHubHTTPError.__bases__ if issubclass(each, Exception))
    without_answer: tuple[type[Exception], ...] = (OSError, *bases)
    try:
        if ask:
            try:
                # Downloading would ask a hub that does not answer for half a minute.
                get_hf_file_metadata(hf_hub_url(model, CONFIG_NAME))
            except without_answer:
                ask = False
        return Path(hf_hub_download(model, CONFIG_NAME, local_files_only=not ask))
    except (ValueError, OSError, EntryNotFoundError) as error:
        if _looks_like_path(model):
            raise EnvironmentFault(
                f"there is no folder {model}",
                hint="check the path; a model of the hub is NAME or OWNER/NAME, and is not asked "
                "for where a folder OWNER is here",
            ) from error
        if isinstance(error, ValueError):
            raise EnvironmentFault(
                f"there is no folder {model}, and the hub has no such names",
                hint=_NAME_A_FOLDER,
            ) from error
        raise EnvironmentFault(
            f"there is no folder {model}, and no {CONFIG_NAME} of {model} in the hub's cache or "
            "to be had from the hub",
            hint="check the name, HF_HUB_OFFLINE, and HF_TOKEN for a gated model",
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_small(path))
    except OSError as error:
        hint = "check its permissions" if error.errno == errno.EACCES else _IS_IT_ONE
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise EnvironmentFault(
            f"{path} is no valid JSON", hint="it may be cut short: fetch the model again"
        ) from error
    if not isinstance(config, dict):
        raise EnvironmentFault(f"{path} is no JSON object", hint=_IS_IT_ONE)
    return config
