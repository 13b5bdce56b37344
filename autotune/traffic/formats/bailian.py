"""Qwen-Bailian's usage traces: JSON Lines with times in seconds and ids of 16 tokens.

``{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521,
"output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089, …]}``. The turns of a chat are
requests of their own, as recorded. Source: ``alibaba-edu/qwen-bailian-usagetraces-anon`` (Wang et
al., USENIX ATC 2025).
"""

from __future__ import annotations

from pathlib import Path

from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import BadLine, Reader, parsed
from autotune.traffic.formats.clock import Clock
from autotune.traffic.formats.documents import Row, as_row, table_rows
from autotune.traffic.formats.fields import count, list_of, required
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded
from autotune.traffic.model import MAX_HASH_ID, Trace, blocks_of

BLOCK_SIZE = 16

_HINT = (
    'a line is {"chat_id": 1, "timestamp": 61.114, "input_length": 521, "output_length": 132, …}'
)


def read(path: Path) -> Trace:
    """Read a trace of Qwen-Bailian.

    Raises:
        TraceError: a row is no request, or its ids do not fit its prompt.
    """
    clock = Clock(from_zero=True)

    def request(value: object) -> Found:
        row = as_row(value)
        arrival_ns = clock.ns("timestamp", required(row, "timestamp", _HINT))
        prompt, output = count(row, "input_length"), count(row, "output_length")
        if not prompt or not output:
            return LeftOut.WITHOUT_TOKENS
        return Recorded(
            arrival_ns=arrival_ns,
            input_length=prompt,
            output_length=output,
            hash_ids=_ids(row, prompt),
        )

    found = [each for _, each in parsed(path, table_rows(path), request)]
    return assembled(
        path,
        found,
        remarks=(clock.remark(),),
        block_size=BLOCK_SIZE,
        is_clock_time=clock.is_absolute(),
    )


def _ids(row: Row, prompt: int) -> tuple[int, ...]:
    ids = list_of(row.get("hash_ids"))
    wanted = blocks_of(prompt, BLOCK_SIZE)
    if ids and len(ids) != wanted:
        raise BadLine(
            f"hash_ids: {len(ids)} ids for {prompt} prompt tokens, blocks of {BLOCK_SIZE} need "
            f"{wanted}",
            hint="each block of the prompt has one id, the last one perhaps in part",
        )
    whole = [
        each
        for each in ids
        if isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= MAX_HASH_ID
    ]
    if len(whole) != len(ids):
        raise BadLine(
            "hash_ids: not all are whole numbers from 0 to 2^63 - 1",
            hint="hash_ids has a number for each block of the prompt",
        )
    return tuple(whole)


BAILIAN = Reader(
    name="bailian",
    summary="JSON Lines of Qwen-Bailian, with chat_id and timestamp in seconds",
    recognises=lambda head: {"chat_id", "timestamp"} <= outline(head).keys,
    read=read,
)
