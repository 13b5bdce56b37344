"""Mooncake's traces: the native rows, with what Mooncake promises of them.

Blocks have 512 tokens and every row has its ``hash_ids``, so prefixes are known; nothing is
inferred, and a description beside the file is not looked at. Source: Mooncake, FAST 2025,
``conversation_trace``, ``toolagent_trace`` and ``synthetic_trace``, Apache-2.0.
"""

from __future__ import annotations

from pathlib import Path

from autotune.traffic.formats.base import Reader, fault
from autotune.traffic.formats.native import from_rows, read_rows
from autotune.traffic.model import Trace

BLOCK_SIZE = 512


def read(path: Path) -> Trace:
    """Read a trace of Mooncake.

    Raises:
        TraceError: a row is no request, or has not one hash id for each 512 prompt tokens.
    """
    rows = read_rows(path)
    for number, request in zip(rows.numbers, rows.requests, strict=True):
        if not request.hash_ids:
            raise fault(
                path,
                number,
                "hash_ids: field required",
                hint="every row of Mooncake has them; --format native reads rows without",
            )
    return from_rows(rows, block_size=BLOCK_SIZE, prefixes_known=True)


MOONCAKE = Reader(
    name="mooncake",
    summary=f"as native, with a hash id for each {BLOCK_SIZE} prompt tokens of every row",
    # `auto` reads it as native, which infers the same.
    recognises=lambda _head: False,
    read=read,
)
