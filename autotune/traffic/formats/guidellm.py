"""Reports of guidellm: JSON with every request of every benchmark.

``{"benchmarks": [{"requests": {"successful": […], "incomplete": […], "errored": […]}}]}``.
Requests have ``request_start_time`` or ``start_time``, ``prompt_tokens`` and ``output_tokens``,
in older reports under other names. Source: guidellm, ``schemas/base/request_stats.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotune.errors import TraceError
from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import Reader, parsed
from autotune.traffic.formats.clock import Clock
from autotune.traffic.formats.documents import Row, json_values
from autotune.traffic.formats.fields import (
    elapsed_ms,
    first_of,
    object_of,
    objects_in,
    optional_count,
    positive_ms,
    required,
)
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.model import Trace

_STARTS = ("request_start_time", "start_time", "request_start", "resolve_start")
_ENDS = ("request_end_time", "end_time", "request_end", "resolve_end")
_PROMPT = ("prompt_tokens", "total_tokens", "text_tokens")
_OUTPUT = ("output_tokens", "total_tokens", "text_tokens")
_DETAILED = "write the report with every request: do not sample them, and keep the form JSON"


def read(path: Path) -> Trace:
    """Read the requests of all benchmarks in a report, in the order of their times.

    Errored requests are counted as failed; incomplete ones keep the tokens that they got.

    Raises:
        TraceError: the report has no requests.
    """
    benchmarks = [each for _, value in json_values(path) for each in _benchmarks(value)]
    clock = Clock()

    def request(item: tuple[str, Row]) -> Found:
        status, row = item
        return LeftOut.FAILED if status == "errored" else _recorded(row, status, clock)

    rows = [(1, each) for benchmark in benchmarks for each in _requests(benchmark)]
    if not rows:
        raise TraceError(f"{path}: the report has no requests, only figures", hint=_DETAILED)
    found = [each for _, each in parsed(path, iter(rows), request, kind="requests")]
    remarks = [clock.remark()]
    if len(benchmarks) > 1:
        remarks.append(
            f"The report has {len(benchmarks)} benchmarks, read one after the other: `autotune "
            "trace window` cuts one out."
        )
    whole = sum(_total(benchmark) for benchmark in benchmarks)
    if whole > len(rows):
        remarks.append(
            f"The report has {len(rows)} of its {whole} requests: the traffic was denser than "
            "this trace."
        )
    return assembled(path, found, remarks=remarks, is_clock_time=True)


def _benchmarks(value: object) -> list[Row]:
    return objects_in(object_of(value).get("benchmarks"))


def _requests(benchmark: Row) -> Iterator[tuple[str, Row]]:
    given = benchmark.get("requests", benchmark.get("request_stats"))
    for status in ("successful", "incomplete", "errored"):
        yield from ((status, row) for row in objects_in(object_of(given).get(status)))


def _total(benchmark: Row) -> int:
    totals = object_of(benchmark.get("request_totals", benchmark.get("run_stats")))
    total = totals.get("total")
    return total if isinstance(total, int) else 0


def _recorded(row: Row, status: str, clock: Clock) -> Found:
    timings = object_of(object_of(row.get("info")).get("timings"))
    times = {**timings, **row}
    name, start = first_of(times, *_STARTS)
    arrival_ns = clock.ns(name, required(times, name, _DETAILED) if start is None else start)
    prompts, outputs = object_of(row.get("input_metrics")), object_of(row.get("output_metrics"))
    prompt = optional_count(row, "prompt_tokens")
    output = optional_count(row, "output_tokens")
    return request_or_left_out(
        Recorded(
            arrival_ns=arrival_ns,
            input_length=prompt or optional_count(prompts, *_PROMPT) or 0,
            output_length=output or optional_count(outputs, *_OUTPUT) or 0,
            cached_tokens=optional_count(prompts, "cached_tokens"),
            outcome="cancelled" if status == "incomplete" else None,
            ttft_ms=positive_ms(row.get("time_to_first_token_ms"), per_unit=1.0),
            e2e_ms=elapsed_ms(arrival_ns, times, *_ENDS),
        )
    )


def _recognises(head: str) -> bool:
    found = outline(head)
    return "benchmarks" in found.keys or "guidellm_version" in found.inner


GUIDELLM = Reader(
    name="guidellm",
    summary="guidellm's report as JSON, with benchmarks",
    recognises=_recognises,
    read=read,
)
