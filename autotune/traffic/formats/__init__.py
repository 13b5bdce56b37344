"""Readers of trace files, one a format."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import TraceError, UsageError
from autotune.traffic.formats.azure_csv import AZURE
from autotune.traffic.formats.bailian import BAILIAN
from autotune.traffic.formats.base import Reader, first_lines
from autotune.traffic.formats.burstgpt import BURSTGPT
from autotune.traffic.formats.custom import CUSTOM
from autotune.traffic.formats.foreign import likeness
from autotune.traffic.formats.guidellm import GUIDELLM
from autotune.traffic.formats.langfuse import LANGFUSE
from autotune.traffic.formats.litellm import LITELLM
from autotune.traffic.formats.mooncake import MOONCAKE
from autotune.traffic.formats.native import NATIVE
from autotune.traffic.formats.openai_batch import BATCH
from autotune.traffic.formats.otlp import OTLP
from autotune.traffic.formats.sharegpt import SHAREGPT
from autotune.traffic.formats.vllm_bench import VLLM_BENCH
from objectives.errors import nearest

FORMATS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        NATIVE, MOONCAKE, AZURE, BURSTGPT, BAILIAN, CUSTOM, SHAREGPT, BATCH, LITELLM, LANGFUSE,
        OTLP, GUIDELLM, VLLM_BENCH,
    )
}  # fmt: skip


def detect(path: Path) -> Reader:
    """Return the reader that recognises the beginning of ``path``.

    Raises:
        TraceError: the file is empty, cannot be read, or is no trace; it says what it looks like.
    """
    head = first_lines(path)
    for reader in FORMATS.values():
        if reader is not NATIVE and reader.recognises(head):
            return reader
    found = likeness(head)
    if found is not None:
        raise TraceError(f"{path}: {found.what}", hint=found.hint)
    # What looks like a row and is nobody else's is ours, and its faults are explained.
    if NATIVE.recognises(head):
        return NATIVE
    raise TraceError(
        f"{path}:1: no known trace format",
        hint=f"known are {', '.join(FORMATS)}; --format NAME says what is wrong with a file",
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
