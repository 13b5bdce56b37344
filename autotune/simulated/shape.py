"""The shape of an engine that was started, for simulating it."""

from __future__ import annotations

import re

from autotune.engine.protocol import EngineInfo
from autotune.forecast.simulation import EngineShape

_BLOCK_SIZE = 16
_NOT_ALONE_SINCE = (0, 32)
"""The vLLM since which a request that is alone is not held to the long-prefill threshold, as far
as known: 0.26 holds it to it, 0.32 does not."""


def shape_of(info: EngineInfo, *, delivery_s: float = 0.0) -> EngineShape:
    """Return the shape of an engine that was started.

    Raises:
        ValueError: it was only described, so that nobody knows its KV cache.
    """
    if info.kv_cache_tokens is None:
        raise ValueError("the KV cache of an engine that was not started is unknown")
    given = info.resolved
    block_size = int(given.get("block_size") or _BLOCK_SIZE)
    return EngineShape(
        kv_blocks=info.kv_cache_tokens // block_size,
        block_size=block_size,
        caching=bool(given.get("enable_prefix_caching")),
        in_flight=2 if given.get("async_scheduling") else 1,
        priority=given.get("scheduling_policy") == "priority",
        watermark=float(given.get("watermark") or 0.0),
        whole_prompt=bool(given.get("scheduler_reserve_full_isl", True)),
        chunked=bool(given.get("enable_chunked_prefill", True)),
        threshold_alone=_minor(info.vllm_version) < _NOT_ALONE_SINCE,
        delivery_s=delivery_s,
    )


def _minor(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else _NOT_ALONE_SINCE
