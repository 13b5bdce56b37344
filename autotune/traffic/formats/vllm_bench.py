"""Results of ``vllm bench serve --save-result --save-detailed``.

One JSON object with the lists ``input_lens``, ``output_lens``, ``start_times``, ``ttfts``,
``latencies`` and ``errors``, one entry a request. Times are seconds of a clock that started with
the host. Source: vLLM, ``vllm/benchmarks/serve.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import TraceError
from autotune.traffic.formats.arrivals import made_source, with_made_arrivals
from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import NO_OPTIONS, TIMELESS, Reader, ReadOptions, parsed
from autotune.traffic.formats.clock import Clock
from autotune.traffic.formats.documents import Row, json_values
from autotune.traffic.formats.fields import count, positive_ms, required
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.model import Trace

_NEEDED = ("input_lens", "output_lens")
_LISTS = (*_NEEDED, "start_times", "ttfts", "latencies", "errors")
_DETAILED = "run `vllm bench serve` again with --save-result --save-detailed"


def read(path: Path, options: ReadOptions = NO_OPTIONS) -> Trace:
    """Read the requests of a benchmark; those with an error are counted as failed.

    Raises:
        TraceError: the file has no details, or several results.
        UsageError: there are no times and no rate is given.
    """
    result = _result(path)
    clock = Clock(from_zero=True)
    has_times = "start_times" in result

    def request(row: Row) -> Found:
        if row.get("errors"):
            return LeftOut.FAILED
        start = required(row, "start_times", _DETAILED) if has_times else None
        return request_or_left_out(
            Recorded(
                arrival_ns=clock.ns("start_times", start) if has_times else None,
                input_length=count(row, "input_lens"),
                output_length=count(row, "output_lens"),
                ttft_ms=positive_ms(row.get("ttfts"), per_unit=1e3),
                e2e_ms=positive_ms(row.get("latencies"), per_unit=1e3),
            )
        )

    found = [each for _, each in parsed(path, _rows(path, result), request, kind="requests")]
    if has_times:
        return assembled(path, found, remarks=(clock.remark(),))
    made, remark = with_made_arrivals(path, found, options, why="results of an older vLLM have")
    return assembled(path, made, remarks=(remark,), details=(made_source(options),))


def _result(path: Path) -> Mapping[str, Any]:
    results = [value for _, value in json_values(path)]
    if len(results) != 1:
        raise TraceError(
            f"{path}: has {len(results)} results, each with a clock of its own",
            hint="write the line of one of them to a file of its own",
        )
    result = results[0]
    if not isinstance(result, dict) or not all(
        isinstance(result.get(name), list) for name in _NEEDED
    ):
        raise TraceError(f"{path}: has the figures of a benchmark and no requests", hint=_DETAILED)
    return result


def _rows(path: Path, result: Mapping[str, Any]) -> Iterator[tuple[int, Row]]:
    lists = {name: result[name] for name in _LISTS if isinstance(result.get(name), list)}
    sizes = {name: len(values) for name, values in lists.items()}
    if len(set(sizes.values())) != 1:
        words = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise TraceError(f"{path}: lists of different lengths: {words}", hint=_DETAILED)
    for values in zip(*lists.values(), strict=True):
        yield 1, dict(zip(lists, values, strict=True))


def _recognises(head: str) -> bool:
    keys = outline(head).keys
    return "input_lens" in keys or {"request_throughput", "total_input_tokens"} <= keys


VLLM_BENCH = Reader(
    name="vllm-bench",
    summary="detailed results of `vllm bench serve`, with input_lens and output_lens",
    recognises=_recognises,
    read=read,
    takes=TIMELESS,
    read_as=read,
)
