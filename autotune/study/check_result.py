"""What serving an export showed, and how it compares with what was promised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autotune.engine.serve import Gone
from autotune.engine.serve_report import Proof
from autotune.study.check_export import Exported
from autotune.study.endpoint_replay import EndpointReplay
from objectives.limits import METRICS, Budget
from objectives.measurement import Measurement

_RATES = ("output_throughput", "request_throughput", "total_token_throughput", "goodput")


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric as promised and as served.

    Attributes:
        name: of the metric.
        promised: by the study, measured in process.
        low, high: of its interval there; None where there is no such bound.
        served: over HTTP.
        added: by HTTP, in the metric's own unit.
        ratio: added per promised: 0.1 is 10 % more.
        within: whether what was served lies in the interval; None without one.
    """

    name: str
    promised: float
    low: float | None
    high: float | None
    served: float
    added: float
    ratio: float | None
    within: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What came of serving an export.

    Attributes:
        command: that was run.
        log: the server's output.
        refusal: why vLLM does not start with the file, in its words; None where it does.
        start_s: until it took requests.
        first_token_s: from the first request to its token.
        kv_cache_tokens: that the server reports.
        proofs: one for each value of the file.
        resolved: every value of the server's configuration, by its dotted path.
        measurement: of the replay; None where there was none.
        replay: the same by requests.
        traffic: sha256 of what was replayed.
        same_traffic: whether it was that of the study, without which nothing is compared.
        budget: that was judged by, in ms.
        kept: whether the replay keeps the budget; None without one.
        compared: what was promised with what was served.
        late: why the client's figures do not count; None where they do.
        gone: what became of the server.
    """

    command: tuple[str, ...]
    log: Path
    refusal: str | None = None
    start_s: float | None = None
    first_token_s: float | None = None
    kv_cache_tokens: int | None = None
    proofs: tuple[Proof, ...] = ()
    resolved: Mapping[str, object] = field(default_factory=dict)
    measurement: Measurement | None = None
    replay: EndpointReplay | None = None
    traffic: str | None = None
    same_traffic: bool = False
    budget: Budget | None = None
    kept: bool | None = None
    compared: tuple[Compared, ...] = ()
    late: str | None = None
    gone: Gone | None = None

    @property
    def differing(self) -> tuple[Proof, ...]:
        """The values of the file that are not in force."""
        return tuple(each for each in self.proofs if each.state == "differs")

    @property
    def intervals(self) -> dict[str, tuple[float | None, float | None]]:
        """The bounds of what was measured, by metric."""
        found = {} if self.measurement is None else self.measurement.intervals
        return {name: (each.low, each.high) for name, each in found.items() if _compares(name)}

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        measured = self.measurement
        return {
            "command": list(self.command),
            "log": str(self.log),
            "refusal": self.refusal,
            "start_s": self.start_s,
            "first_token_s": self.first_token_s,
            "kv_cache_tokens": self.kv_cache_tokens,
            "values": [asdict(each) for each in self.proofs],
            "resolved": dict(self.resolved),
            "requests": None if measured is None else measured.requests,
            "failed_requests": None if measured is None else measured.failed_requests,
            "send_lag_p99_ms": None if measured is None else measured.send_lag_p99_ms,
            "usage": None if self.replay is None else self.replay.usage,
            "metrics": {} if measured is None else _latencies(measured.metrics),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "traffic": self.traffic,
            "same_traffic": self.same_traffic,
            "budget": None if self.budget is None else self.budget.text,
            "kept": self.kept,
            "compared": [asdict(each) for each in self.compared],
            "late": self.late,
            "gone": None
            if self.gone is None
            else {**asdict(self.gone), "proved": self.gone.proved},
        }


def compare(exported: Exported, served: Mapping[str, float | None]) -> tuple[Compared, ...]:
    """Return every latency and rate that was promised and that was served."""
    found = []
    for name, promised in exported.metrics.items():
        now = served.get(name)
        if promised is None or now is None or not _compares(name):
            continue
        if not (math.isfinite(promised) and math.isfinite(now)):
            continue
        low, high = exported.intervals.get(name, (None, None))
        within = None
        if name in exported.intervals:
            within = (low is None or now >= low) and (high is None or now <= high)
        added = now - promised
        ratio = added / promised if promised > 0 else None
        found.append(Compared(name, promised, low, high, now, added, ratio, within))
    return tuple(found)


def _compares(name: str) -> bool:
    return name in _RATES or name.partition("_")[0] in METRICS


def _latencies(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if _compares(name)}
