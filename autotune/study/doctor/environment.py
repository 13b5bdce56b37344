"""The environment: what is missing in it, what is misspelt, and whether models can be had."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.study.doctor.results import Result
from objectives.errors import nearest

OUR_NAMES = (
    "AUTOTUNE_CAPTURE",
    "AUTOTUNE_CAPTURE_ROTATE",
    "AUTOTUNE_CAPTURE_ROTATE_BYTES",
    "AUTOTUNE_CAPTURE_SALT_FILE",
    "AUTOTUNE_CAPTURE_TOKENIZER",
    "AUTOTUNE_CAPTURE_WITH_TEXT",
    "AUTOTUNE_COMPILE",
    "AUTOTUNE_ENGINE_HOST",
    "AUTOTUNE_EVENT",
    "AUTOTUNE_NOTIFY_URL",
    "AUTOTUNE_RUN",
    "AUTOTUNE_STORAGE",
)
"""All that we read, or set for engines."""

_PREFIX = "AUTOTUNE_"
_YES = frozenset(("1", "true", "yes", "on"))
_COMPILERS = ("cc", "gcc", "clang")


def environment_results(environ: Mapping[str, str], *, compiles: bool = False) -> Iterator[Result]:
    """Judge PATH, HOME, the names that begin as ours do, and the way to models.

    Args:
        environ: to be judged.
        compiles: whether engines compile kernels here, for which they want a C compiler.
    """
    yield _path(environ, compiles)
    yield _home(environ)
    yield from _ours(environ)
    yield _hub(environ)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return where models are kept, by the rules of huggingface_hub."""
    if cache := environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~", ".cache")
    return Path(base).expanduser() / "huggingface" / "hub"


def _path(environ: Mapping[str, str], compiles: bool) -> Result:
    path = environ.get("PATH", "")
    if not path:
        return Result("PATH", "fail", "not set", "cron has hardly any: set PATH in its table")
    if compiles and not any(shutil.which(each, path=path) for each in _COMPILERS):
        hint = "install gcc, or set PATH: vLLM compiles kernels at its first start"
        return Result("PATH", "warn", "no C compiler in it", hint)
    return Result("PATH", "ok", f"{path.count(os.pathsep) + 1} folders")


def _home(environ: Mapping[str, str]) -> Result:
    home = environ.get("HOME")
    if not home:
        hint = "set it: caches of models and of compiled kernels go there"
        return Result("HOME", "warn", "not set, as in a systemd unit without User=", hint)
    if not Path(home).is_dir():
        return Result("HOME", "warn", f"{home} is no folder", "set it to one that can be written")
    return Result("HOME", "ok", home)


def _ours(environ: Mapping[str, str]) -> Iterator[Result]:
    unknown = [n for n in sorted(environ) if n.startswith(_PREFIX) and n not in OUR_NAMES]
    for name in unknown:
        hint = nearest(name, OUR_NAMES) or "it has no effect"
        yield Result("variables", "warn", f"{name} is set, and nothing reads it", hint)
    known = [name for name in OUR_NAMES if name in environ]
    if not unknown:
        yield Result("variables", "ok", ", ".join(known) or "none of ours is set")


def _hub(environ: Mapping[str, str]) -> Result:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    offline = [name for name in names if environ.get(name, "").lower() in _YES]
    cache = hub_cache(environ)
    if offline and not (cache.is_dir() and any(cache.glob("models--*"))):
        hint = f"download the model first, or unset {offline[0]}"
        return Result("hub", "warn", f"offline, and there is no model in {cache}", hint)
    if offline:
        count = sum(1 for _ in cache.glob("models--*"))
        return Result("hub", "ok", f"offline by {offline[0]}, {count} models in {cache}")
    return Result("hub", "ok", f"models may be downloaded to {cache}")
