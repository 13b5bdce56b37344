"""BurstGPT's traces: CSV of times in seconds and counts of tokens.

``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``, later ones with
``Session ID`` and ``Elapsed time`` as well. Columns are found by their names. Source: Wang et al.,
BurstGPT (arXiv 2401.17644), whose description says that no response tokens are a failure.
"""

from __future__ import annotations

from pathlib import Path

from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import Reader, parsed
from autotune.traffic.formats.clock import Clock
from autotune.traffic.formats.documents import as_row, table_rows
from autotune.traffic.formats.fields import count, optional_text, required
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.model import Trace

_TIME, _PROMPT, _OUTPUT = "Timestamp", "Request tokens", "Response tokens"
_HEADER = f"{_TIME},Model,{_PROMPT},{_OUTPUT},Total tokens,Log Type"


def read(path: Path) -> Trace:
    """Read a trace of BurstGPT; requests without response tokens failed, and are counted.

    Raises:
        TraceError: a row has no time or no counts.
    """
    clock = Clock(from_zero=True)

    def request(value: object) -> Found:
        row = as_row(value)
        arrival_ns = clock.ns(_TIME, required(row, _TIME, f"the header is {_HEADER}"))
        output = count(row, _OUTPUT)
        if not output:
            return LeftOut.FAILED
        return request_or_left_out(
            Recorded(
                arrival_ns=arrival_ns,
                input_length=count(row, _PROMPT),
                output_length=output,
                model=optional_text(row, "Model"),
            )
        )

    found = [each for _, each in parsed(path, table_rows(path), request)]
    return assembled(path, found, remarks=(clock.remark(),), is_clock_time=clock.is_absolute())


BURSTGPT = Reader(
    name="burstgpt",
    summary=f"CSV with {_TIME},{_PROMPT},{_OUTPUT}",
    recognises=lambda head: head[0] not in "[{" and _PROMPT in head and _OUTPUT in head,
    read=read,
)
