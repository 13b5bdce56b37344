"""Results as files."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import EnvironmentFault


def write_text(path: Path, text: str, *, hint: str = "") -> None:
    """Write a result.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}", hint=hint) from error
