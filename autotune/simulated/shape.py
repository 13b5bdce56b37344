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
    given = info.resolved
    return EngineShape(
        kv_blocks=kv_blocks(info),
        block_size=_block_size(info),
        caching=bool(given.get("enable_prefix_caching")),
        in_flight=2 if given.get("async_scheduling") else 1,
        priority=given.get("scheduling_policy") == "priority",
        watermark=float(given.get("watermark") or 0.0),
        whole_prompt=bool(given.get("scheduler_reserve_full_isl", True)),
        chunked=bool(given.get("enable_chunked_prefill", True)),
        threshold_alone=_minor(info.vllm_version) < _NOT_ALONE_SINCE,
        delivery_s=delivery_s,
    )


def kv_blocks(info: EngineInfo) -> int:
    """Return how many blocks the KV cache of an engine that was started has.

    vLLM tells the tokens of as many longest requests, and parts of one, as the blocks hold: fewer
    than all of them do where ``max_model_len`` leaves a block half empty.

    Raises:
        ValueError: it was only described.
    """
    if info.kv_cache_tokens is None:
        raise ValueError("the KV cache of an engine that was not started is unknown")
    return -(-info.kv_cache_tokens * _longest_blocks(info) // info.max_model_len)


def kv_tokens(blocks: int, info: EngineInfo) -> int:
    """Return the tokens that vLLM says so many blocks of an engine like this to hold."""
    return blocks * info.max_model_len // _longest_blocks(info)


def _longest_blocks(info: EngineInfo) -> int:
    return -(-info.max_model_len // _block_size(info))


def _block_size(info: EngineInfo) -> int:
    return int(info.resolved.get("block_size") or _BLOCK_SIZE)


def _minor(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else _NOT_ALONE_SINCE
