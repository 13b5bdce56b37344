"""Readers of trace files, one a format."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import TraceError, UsageError
from autotune.traffic.formats.azure_csv import AZURE
from autotune.traffic.formats.base import Reader, first_lines
from autotune.traffic.formats.burstgpt import BURSTGPT
from autotune.traffic.formats.custom import CUSTOM
from autotune.traffic.formats.mooncake import MOONCAKE
from autotune.traffic.formats.native import NATIVE
from autotune.traffic.formats.sharegpt import SHAREGPT
from objectives.errors import nearest

FORMATS: dict[str, Reader] = {
    reader.name: reader for reader in (NATIVE, MOONCAKE, AZURE, BURSTGPT, CUSTOM, SHAREGPT)
}


def detect(path: Path) -> Reader:
    """Return the reader that recognises the beginning of ``path``.

    Raises:
        TraceError: the file is empty, cannot be read or has no known form.
    """
    head = first_lines(path)
    # Whatever looks like a row and is nobody else's is ours, and its faults are explained.
    for reader in (*(each for each in FORMATS.values() if each is not NATIVE), NATIVE):
        if reader.recognises(head):
            return reader
    raise TraceError(
        f"{path}:1: no known trace format",
        hint="known are " + "; ".join(f"{r.name} ({r.summary})" for r in FORMATS.values()),
    )


def reader_named(name: str) -> Reader:
    """Return the reader called ``name``.

    Raises:
        UsageError: there is none.
    """
    if name not in FORMATS:
        hint = nearest(name, FORMATS) or "formats: auto, " + ", ".join(FORMATS)
        raise UsageError(f"unknown trace format {name!r}", hint=hint)
    return FORMATS[name]
