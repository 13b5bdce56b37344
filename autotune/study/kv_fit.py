"""Whether traffic fits a KV cache: what it needs at its peak, and what there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.hardware.kv_pool import KvPool, PoolRules
from autotune.hardware.model_shape import EngineDecides
from autotune.traffic.model import Trace
from objectives.arrays import F8, I8

ASSUMED_TTFT_MS = 1000.0
ASSUMED_TPOT_MS = 50.0

_UNCOUNTED: Mapping[str, Any] = {
    "decode_context_parallel_size": 1,
    "disable_sliding_window": False,
    "kv_cache_dtype_skip_layers": [],
    "kv_transfer_config": None,
    "num_gpu_blocks_override": None,
    "pipeline_parallel_size": 1,
    "speculative_config": None,
}
_NEEDED = ("block_size", "max_model_len", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True)
class Need:
    """What traffic asks of a KV cache at its peak.

    Attributes:
        open_requests: most requests open at once, if each took the assumed time.
        tokens: most tokens held at once by the open requests, each with its whole prompt and
            output, of at most ``max_num_seqs`` requests.
        blocks: the same in blocks of the cache; None if it cannot be counted.
        bound_tokens: tokens of the ``max_num_seqs`` longest requests, which no moment can
            exceed; of all requests if ``max_num_seqs`` is unknown.
    """

    open_requests: int
    tokens: int
    blocks: int | None
    bound_tokens: int


def whole_number(arguments: Mapping[str, Any], name: str) -> int | None:
    """Return an argument that is a whole number above 0, None for all else.

    Where vLLM has not resolved the arguments they are what the user wrote.
    """
    value = arguments.get(name)
    return value if type(value) is int and value > 0 else None


def pool_rules(arguments: Mapping[str, Any]) -> PoolRules | EngineDecides:
    """Return how an engine with these resolved arguments divides its KV cache."""
    for name, plain in _UNCOUNTED.items():
        if arguments.get(name, plain) != plain:
            return EngineDecides(f"{name} changes how the cache is divided")
    missing = [name for name in _NEEDED if whole_number(arguments, name) is None]
    if missing:
        return EngineDecides(f"{missing[0]} is not known")
    batches = 2 if arguments.get("async_scheduling") else 1
    return PoolRules(
        block_size=arguments["block_size"],
        max_model_len=arguments["max_model_len"],
        in_flight_tokens=batches * arguments["max_num_batched_tokens"],
        hybrid_manager=not arguments.get("disable_hybrid_kv_cache_manager"),
    )


def peak_need(trace: Trace, *, max_num_seqs: int | None, pool: KvPool | None) -> Need:
    """Return what a trace needs at its peak, before anything was measured.

    A request is taken to stay for ``ASSUMED_TTFT_MS`` and ``ASSUMED_TPOT_MS`` for each further
    token, and to hold its whole length all that time: somewhat too much, on the safe side.
    """
    lengths = trace.input_lengths + trace.output_lengths
    arrivals = trace.timestamps_s
    stay_s = (ASSUMED_TTFT_MS + ASSUMED_TPOT_MS * (trace.output_lengths - 1)) / 1000
    departures = arrivals + stay_s
    tokens, bound_tokens = _peak(arrivals, departures, lengths, max_num_seqs)
    blocks = None
    if pool is not None:
        needed = {length: pool.request_blocks(length) for length in set(lengths.tolist())}
        each = np.array([needed[length] for length in lengths.tolist()], dtype=np.int64)
        blocks, _ = _peak(arrivals, departures, each, max_num_seqs)
    open_requests, _ = _peak(arrivals, departures, np.ones_like(lengths), None)
    return Need(open_requests, tokens, blocks, bound_tokens)


def _peak(arrivals: F8, departures: F8, weights: I8, most: int | None) -> tuple[int, int]:
    """Return the largest sum of weights at once, and the largest that ``most`` of them have.

    Who leaves at a moment makes room for who comes at it.
    """
    times = np.concatenate([departures, arrivals])
    changes = np.concatenate([-weights, weights])
    order = np.argsort(times, kind="stable")
    bound = int(np.sort(weights)[::-1][:most].sum())
    return min(int(np.cumsum(changes[order]).max()), bound), bound
