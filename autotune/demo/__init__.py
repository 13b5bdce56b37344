"""A tiny model and trace that are shipped, so that a first run needs nothing."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import UsageError
from objectives.errors import nearest

PREFIX = "demo:"
_FOLDER = Path(__file__).parent
_TRACES = {"mixed": "mixed.jsonl"}
_MODELS = {"tiny-llama": "tiny-llama"}


def resolve_trace(text: str) -> Path:
    """Return the path of a trace; ``demo:mixed`` is the one that is shipped.

    Raises:
        UsageError: there is no such demo trace.
    """
    return _shipped(text, _TRACES, kind="trace") or Path(text)


def resolve_model(text: str) -> Path | str:
    """Return the folder of ``demo:tiny-llama``, and any other name or path as it is.

    Raises:
        UsageError: there is no such demo model.
    """
    return _shipped(text, _MODELS, kind="model") or text


def _shipped(text: str, known: dict[str, str], *, kind: str) -> Path | None:
    if not text.startswith(PREFIX):
        return None
    name = text.removeprefix(PREFIX)
    if name not in known:
        names = [PREFIX + each for each in known]
        raise UsageError(
            f"no demo {kind} {text!r}", hint=nearest(text, names) or "there is " + ", ".join(names)
        )
    return _FOLDER / known[name]
