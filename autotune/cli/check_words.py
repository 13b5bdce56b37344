"""What a check found, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.cli.tables import figure, plain_line, ruled, written

if TYPE_CHECKING:
    from autotune.engine.serve import Gone
    from autotune.engine.serve_report import Proof
    from autotune.study.check import Checked
    from autotune.study.check_against import Side
    from autotune.study.check_drift import Drifted
    from autotune.study.check_result import Compared, Served

_PROVED = {
    "in_force": "in force",
    "resolved": "left to vLLM",
    "differs": "NOT in force",
    "not_provable": "not provable",
}
_YES = {None: "-", True: "yes", False: "no"}
_SHOWN = ("p50", "p95", "p99")
_UNITS = ("ttft", "tpot", "itl", "e2e")


def check_lines(checked: Checked, *, width: int) -> list[str]:
    """Return all that was found, the answer last."""
    return [plain_line(line) for line in _lines(checked, width)]


def _lines(checked: Checked, width: int) -> Iterator[str]:
    yield f"{checked.exported.source}"
    for each in checked.matters:
        yield f"{each.state:8} {each.name:10} {each.sentence}"
    if checked.drift:
        yield ""
        yield from drift_table(checked.drift, width)
    if checked.served is not None:
        yield ""
        yield from _served(checked.served, width)
    if checked.sides:
        yield ""
        yield from sides_table(checked.sides, width)
    yield ""
    yield _answer(checked)


def _answer(checked: Checked) -> str:
    if checked.against:
        return "It no longer applies."
    unknown = [
        each.name
        for each in checked.matters
        if each.state == "open" and each.name in ("vllm", "device")
    ]
    if unknown and checked.served is None:
        return f"Nothing that was compared speaks against it; {' and '.join(unknown)} were not."
    if checked.served is not None and checked.served.late is not None:
        return "Nothing speaks against it, but what it brings could not be measured."
    return "It applies."


def drift_table(rows: Sequence[Drifted], width: int) -> list[str]:
    """Return then and now; beyond noise is what chance does not explain."""
    heading = ("traffic", "then", "now", "change", "beyond noise", "p", "distance", "matters")
    return ruled(heading, [_drift_row(row) for row in rows], width=width)


def _drift_row(row: Drifted) -> tuple[str, ...]:
    digits = 3 if row.name in ("rate_per_s", "reused_share") else 1
    change = "-" if row.change is None else f"{row.change:+.1%}"
    noise = _YES[row.beyond_noise]
    p = "-" if row.p is None else f"{row.p:.2g}"
    return (
        row.name,
        figure(row.then, digits),
        figure(row.now, digits),
        change,
        noise,
        p,
        figure(row.distance, 2),
        "yes" if row.matters else "",
    )


def sides_table(sides: Sequence[Side], width: int) -> list[str]:
    """Return what was before beside what is now."""
    rows = [
        (
            each.name,
            _value(each.then),
            _value(each.now),
            "-" if each.change is None else f"{each.change:+.1%}",
            _YES[each.beyond_noise],
        )
        for each in sides
        if each.kind != "metric" or _usual(each.name)
    ]
    return ruled(("", "before", "now", "change", "beyond noise"), rows, width=width)


def _value(value: object) -> str:
    if value is None:
        return "-"
    return figure(value, 2) if isinstance(value, float) else written(value)


def _served(served: Served, width: int) -> Iterator[str]:
    if served.refusal is not None:
        yield f"vLLM does not start with it: {served.refusal}"
        yield f"log: {served.log}"
        return
    yield (
        f"served: ready after {figure(served.start_s)} s, first token after "
        f"{figure(served.first_token_s, 2)} s, KV cache of {served.kv_cache_tokens or '-'} tokens"
    )
    yield from ruled(("value", "file", "state", "server"), _proofs(served.proofs), width=width)
    yield ""
    yield from _replay(served, width)
    if served.gone is not None:
        yield ""
        yield _gone(served.gone)
    yield f"log: {served.log}"


def _proofs(proofs: Sequence[Proof]) -> list[tuple[str, ...]]:
    return [
        (
            each.name,
            written(each.wanted),
            _PROVED[each.state],
            # What is in force is not said twice.
            each.where
            if each.found is None or each.state == "in_force"
            else f"{written(each.found)}, by {each.where}",
        )
        for each in proofs
    ]


def _replay(served: Served, width: int) -> Iterator[str]:
    measured = served.measurement
    if measured is None:
        return
    failed = f", {measured.failed_requests} failed" if measured.failed_requests else ""
    yield f"replayed over HTTP: {measured.requests} requests{failed}"
    if served.late is not None:
        yield f"client_bound: {served.late}; do not trust these figures"
    if not served.same_traffic:
        yield "the traffic is not the study's, so its promises are not compared"
    elif served.compared:
        heading = ("metric", "promised", "interval", "served", "HTTP adds", "", "in interval")
        named = () if served.budget is None else [each.key for each in served.budget.limits]
        shown = [each for each in served.compared if _usual(each.name) or each.name in named]
        yield from ruled(heading, [_compared(each) for each in shown], width=width)
    if served.budget is not None and served.kept is None:
        yield f"whether it keeps the budget {served.budget.text} cannot be said"
    elif served.budget is not None:
        kept = "keeps" if served.kept else "breaks"
        yield f"served, it {kept} the budget {served.budget.text}"


def _usual(name: str) -> bool:
    """Whether a metric is shown without being named: JSON has all of them."""
    metric, _, kind = name.partition("_")
    return kind in _SHOWN or metric not in _UNITS


def _compared(each: Compared) -> tuple[str, ...]:
    digits = 2
    interval = "-"
    if each.within is not None:
        ends = (figure(end, digits) if end is not None else "…" for end in (each.low, each.high))
        interval = " to ".join(ends)
    unit = " ms" if each.name.partition("_")[0] in _UNITS else "/s"
    return (
        each.name,
        figure(each.promised, digits),
        interval,
        figure(each.served, digits),
        f"{each.added:+.{digits}f}{unit}",
        "-" if each.ratio is None else f"{each.ratio:+.1%}",
        _YES[each.within],
    )


def _gone(gone: Gone) -> str:
    if not gone.proved:
        left = ", ".join(gone.left) or "something answers at its port"
        return f"the server is NOT gone: {left}"
    forced = f", {', '.join(gone.forced)} had to be ended" if gone.forced else ""
    segments = f", {len(gone.segments)} segments of shared memory removed" * bool(gone.segments)
    count = len(gone.processes)
    processes = f"{count} {'process' if count == 1 else 'processes'}"
    how = f"{gone.status} in {gone.stop_s:.1f} s"
    return f"the server is gone: {how}, {processes} ended{forced}{segments}"
