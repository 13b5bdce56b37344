"""What every replay has in common: how it warms up, and when it does not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autotune.engine.protocol import Failure
from autotune.traffic.model import Trace
from objectives.limits import Budget
from objectives.measurement import Measurement

MIN_WARMUP_REQUESTS = 8

FIRST_WARMUP_S = 30.0
"""Of the window, for the first warm-up on an engine: stalls of 50 ms for what it meets for the
first time came throughout the first 16 s on an H200, and never again."""

MAX_SEND_LAG_MS = 5.0
MAX_SEND_LAG_SHARE = 0.1

LATE: Final = "client_bound"
"""The one reason for which a replay does not count that depends on the budget."""


def warmup_requests(trace: Trace, warmup_s: float) -> int:
    """Return how many requests of the window arrive in its first ``warmup_s`` seconds.

    At least a few, however sparse the window is, unless no warm-up is wanted.
    """
    if warmup_s == 0:
        return 0
    within = int((trace.timestamps_s < warmup_s).sum())
    return max(within, min(MIN_WARMUP_REQUESTS, len(trace.requests)))


def first_warmup_requests(trace: Trace, warmup_s: float) -> int:
    """Return the same for the first warm-up on an engine, which is longer."""
    return warmup_requests(trace, max(warmup_s, FIRST_WARMUP_S) if warmup_s else 0.0)


def allowed_lag_ms(metrics: Mapping[str, float | None], budget: Budget) -> float:
    """Return how late (p99) the client may send in a replay that counts."""
    limits = [
        limit.limit_ms for limit in budget.limits if limit.metric == "ttft" and limit.limit_ms
    ]
    allowed = min(limits) if limits else metrics.get("ttft_p95") or 0.0
    return max(MAX_SEND_LAG_MS, MAX_SEND_LAG_SHARE * allowed)


def client_bound(measurement: Measurement, budget: Budget) -> Failure | None:
    """Return a failure if the client sent too late for the replay to count, else None."""
    return late_client(measurement.send_lag_p99_ms, measurement.metrics, budget)


def late_client(
    lag_ms: float, metrics: Mapping[str, float | None], budget: Budget
) -> Failure | None:
    """As ``client_bound``, of how late the client sent (p99) and of metrics or their bounds."""
    allowed_ms = allowed_lag_ms(metrics, budget)
    if lag_ms <= allowed_ms:
        return None
    return Failure(
        LATE, f"requests left up to {lag_ms:.1f} ms late (p99), over {allowed_ms:.1f} ms"
    )
